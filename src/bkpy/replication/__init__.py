"""Finds what bookies have lost, and copies it."""
