"""The scrub: a bookie reads what its indexes name now and then, so that rot is found while there are other copies."""
