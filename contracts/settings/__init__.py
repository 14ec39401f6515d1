"""Declare the hyperparameters, a group in each file."""
