"""The blocking client, for scripts, notebooks and services with threads: `connect_sync`."""
