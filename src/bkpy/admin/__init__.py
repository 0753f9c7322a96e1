"""What operators start, and the `AdminClient` that starts it: recovery, drain, decommission, rebalance of bookies."""
