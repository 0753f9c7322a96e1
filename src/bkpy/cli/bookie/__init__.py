"""`bkpy bookie ...`."""
