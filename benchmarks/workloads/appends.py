"""Small appends to one ledger, 1000 in flight: what an `append` costs the client, its task and its future included."""

from workloads import Workload

WORKLOAD = Workload("append 100 B, 1000 in flight", ["--size", "100", "--outstanding", "1000"])
