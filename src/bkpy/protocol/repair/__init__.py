"""What bookies have lost or may delete: finding it, planning copies, draining, rebalancing, collecting."""
