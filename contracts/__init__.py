"""What a job reads and writes: paths, channels, hyperparameters, artifacts. Imports nothing of the house."""
