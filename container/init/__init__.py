"""Make a job from a raw table: roles of columns, splits, hyperparameters."""
