"""Attribute the logit of a prediction to the parts of its record."""
