"""Fit on train and transform tables to prepared splits: one code path for files, batches and records. No torch."""
