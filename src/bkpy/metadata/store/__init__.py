"""The metadata store: its interface, the one in ZooKeeper, one in memory, and outcomes of writes as values."""
