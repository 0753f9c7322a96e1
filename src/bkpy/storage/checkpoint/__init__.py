"""Checkpoints: write entries and states from memory to entry logs and index, so that journal files may go."""
