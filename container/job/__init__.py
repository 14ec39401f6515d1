"""Run a job from inputs to exit code: a host's supervisor, the processes that it starts, the cause of a failure."""
