"""Connect the hosts of a job, give them complete channels, and derive the settings for their workers."""
