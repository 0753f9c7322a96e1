"""`bkpy log ...`."""
