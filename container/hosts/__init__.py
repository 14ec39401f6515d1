"""The hosts of a job: their order, the connections between them, and the settings for their workers."""
