"""Every checksum and every cross-reference in a bookie's directories, looked at without changing any of them."""
