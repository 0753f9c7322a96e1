"""The client: connections to bookies, ledger writers and ledger readers."""
