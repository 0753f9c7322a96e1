"""The same appends to a named log: what positions, times and a window over two ledgers cost beside a ledger's."""

from workloads import Workload

WORKLOAD = Workload("append to a log 100 B, 1000 in flight", ["--size", "100", "--outstanding", "1000", "--log"])
