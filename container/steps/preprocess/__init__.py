"""Split a raw table into train, val and test, and profile it."""
