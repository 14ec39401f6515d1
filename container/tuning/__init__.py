"""Train several networks: the trials of a search of hyperparameters, and the members of an ensemble."""
