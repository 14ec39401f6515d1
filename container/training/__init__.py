"""Train in the mesh: loop, objective, optimizer, checkpoints, early stopping, resuming."""
