"""Start, watch and restart the processes that train: launcher, workers, the queue of several trainings."""
