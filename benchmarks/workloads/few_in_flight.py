"""A hundred appends in flight: groups are small, so syncs and wake-ups weigh more than entries."""

from workloads import Workload

WORKLOAD = Workload("append 100 B, 100 in flight", ["--size", "100", "--outstanding", "100"])
