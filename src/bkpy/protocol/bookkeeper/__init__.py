"""Apache BookKeeper's own protocol: entries, packets, messages and metadata, byte for byte as release 4.17 has them."""
