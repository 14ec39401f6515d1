"""The programs of the pipeline's processing jobs; program.py runs one by its contract."""
