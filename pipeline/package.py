"""Domain and task of every model package, in the local registry and on AWS."""

DOMAIN = "NATURAL_LANGUAGE_PROCESSING"
TASK = "CLASSIFICATION"
