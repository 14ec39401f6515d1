"""Train: launcher, worker, loop, optimizer, checkpoints, early stopping, finishing."""
