"""Ranges of entries, put together from where they are."""
