"""What runs inside the image. Never imports the SageMaker SDK; importing this package imports no torch."""
