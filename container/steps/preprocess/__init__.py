"""The step that splits a raw table into train, val and test, with a profile of the data."""
