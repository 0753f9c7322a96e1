"""A client of a BookKeeper cluster: what its connections to bookies do otherwise."""
