"""Define what a job reads and writes: paths, settings, artifacts, steps. Imports no other package of the project."""
