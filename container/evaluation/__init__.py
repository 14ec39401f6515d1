"""Metrics, predictions, plots and the report. Imports no torch."""
