"""Encoders, tabular branch, fusion heads and the classifier: plain modules that know no rank."""
