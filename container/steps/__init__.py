"""The pipeline's step programs: each reads its inputs under a root, obeys its contract, and writes its outputs."""
