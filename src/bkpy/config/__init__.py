"""Typed settings: those of bookies and of clients, and where they come from."""
