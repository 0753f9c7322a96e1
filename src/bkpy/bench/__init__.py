"""Throughput and latency of a cluster, beside what bare sockets and fdatasync allow on the same machine."""
