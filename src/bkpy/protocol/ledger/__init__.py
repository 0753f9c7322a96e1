"""Ledgers: their metadata, quorums and acknowledgements, and what happens when a bookie or a writer fails."""
