"""Entries that are durable in the journal only, in memory to be read and flushed."""
