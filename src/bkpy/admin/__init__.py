"""What operators start: draining, decommissioning and rebalancing bookies."""
