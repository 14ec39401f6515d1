"""Estimate memory, time and cost of a training job before it runs."""
