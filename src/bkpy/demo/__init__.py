"""The demonstration: a year of flights on a local cluster."""
