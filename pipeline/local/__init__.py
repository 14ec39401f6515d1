"""The pipeline as local processes: the same steps, a folder for each, from the cache where nothing has changed."""
