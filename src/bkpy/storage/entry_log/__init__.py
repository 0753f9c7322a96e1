"""The files in which entries stay."""
