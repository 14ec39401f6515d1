"""Search for the best values of hyperparameters: many trials, then the training of the winner."""
