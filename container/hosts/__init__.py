"""The hosts of a job: who they are, how they keep in touch, what their workers are told."""
