"""What every model package says of itself, here and on AWS, beside the media types of contracts/serving.py."""

DOMAIN = "NATURAL_LANGUAGE_PROCESSING"
TASK = "CLASSIFICATION"
