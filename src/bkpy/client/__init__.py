"""The client: what assembles its parts, and the ways through it to write, read and close ledgers."""
