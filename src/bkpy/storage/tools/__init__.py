"""What looks at or rebuilds the files of a bookie that is not in service."""
