"""The worker: loop, optimizer, checkpoints, early stopping, metric log."""
