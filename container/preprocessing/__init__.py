"""Fit preprocessing on train, and transform files, batches and records to prepared splits. Imports no torch."""
