"""Prepared splits on disk to packed batches."""
