"""Build the mesh and parallelize a plain model over it."""
