"""Reads of entry ranges, from memory, blocks and journal files."""
