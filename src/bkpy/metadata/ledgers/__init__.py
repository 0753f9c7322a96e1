"""The metadata of ledgers: layouts of their nodes, reading, writing, listing."""
