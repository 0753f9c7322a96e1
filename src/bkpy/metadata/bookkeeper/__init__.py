"""The metadata of a cluster of Apache BookKeeper, where they differ from bkpy's."""
