"""The step that computes metrics, slices and plots from predictions."""
