"""Reads, from a call to verified entries."""
