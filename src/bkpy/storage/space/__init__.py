"""Deletion of ledgers, and the space on a bookie's disks."""
