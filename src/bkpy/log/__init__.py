"""Named logs: one sequence of entries, on ledgers that follow each other."""
