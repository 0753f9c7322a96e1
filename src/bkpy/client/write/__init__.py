"""Appends, from a call to its acknowledgement."""
