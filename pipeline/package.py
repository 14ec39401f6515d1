"""What every model package says of itself, here and on AWS."""

CONTENT_TYPES = ("text/csv", "application/json", "application/jsonlines", "application/x-parquet")
RESPONSE_TYPES = ("application/json", "text/csv")
DOMAIN = "NATURAL_LANGUAGE_PROCESSING"
TASK = "CLASSIFICATION"
