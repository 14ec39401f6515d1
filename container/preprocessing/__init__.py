"""Table in, prepared split out: fitted on train, one code path for a file, a batch and a record. Imports no torch."""
