"""Backups of a cluster's metadata, and their restore."""
