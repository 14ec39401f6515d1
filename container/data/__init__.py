"""Read prepared splits from disk and pack their records into batches."""
