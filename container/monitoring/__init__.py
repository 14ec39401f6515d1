"""Compare the records that a deployed model receives with those that it was trained on."""
