"""Entry logs: the files in which checkpoints store entries."""
