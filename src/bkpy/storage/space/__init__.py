"""The space on a bookie's disks."""
