"""Make the results of a training: predictions, companion, decision, export, explanation, report."""
