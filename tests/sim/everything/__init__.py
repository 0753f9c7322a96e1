"""One world in which everything happens at once: its plans, its run and its oracle."""
