"""The pipeline around training: the same steps as a SageMaker pipeline or as local processes."""
