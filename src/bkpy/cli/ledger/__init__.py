"""`bkpy ledger ...`."""
