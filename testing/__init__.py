"""What tests and benchmarks share: small jobs, processes that start at once, ranks, parity."""
