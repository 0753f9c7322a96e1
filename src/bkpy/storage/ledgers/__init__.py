"""The states of ledgers on a bookie: everything but their entries."""
