"""From logits to calibrated probabilities to a decided class, as fitted on val; imports no torch."""
