"""One append after the other: the latency of a quorum, with nothing to share it."""

from workloads import Workload

WORKLOAD = Workload("append 100 B, 1 in flight", ["--size", "100", "--outstanding", "1"])
