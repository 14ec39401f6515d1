"""The pipeline as SageMaker's: its definition, and what creates and starts it."""
