"""Read and write tables: files, records in memory, and the meaning of a cell. Imports no torch."""
