"""Send the results of a finished job to an MLflow tracking server."""
