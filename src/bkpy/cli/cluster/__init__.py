"""`bkpy cluster ...` and `bkpy autorecovery ...`."""
