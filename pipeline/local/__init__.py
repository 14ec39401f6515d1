"""Run the steps on this machine, as processes or in containers."""
