"""Clean, chunk and tokenize text; find and check encoder files. Imports no torch."""
