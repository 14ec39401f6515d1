"""Compute metrics, slices and plots from predictions."""
