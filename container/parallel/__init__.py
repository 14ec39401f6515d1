"""The mesh, and functions that take a plain model and return it parallelised."""
