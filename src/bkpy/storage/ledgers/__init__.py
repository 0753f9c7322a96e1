"""What a bookie knows of ledgers besides their entries."""
