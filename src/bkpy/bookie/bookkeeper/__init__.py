"""Apache BookKeeper's own clients on this bookie: connections that speak v2 and v3 in place of bkpy's protocol."""
