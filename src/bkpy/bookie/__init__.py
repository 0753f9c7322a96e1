"""The bookie process: a TCP server in front of the storage engine, and its life cycle."""
