"""One small append in flight in each of a thousand ledgers: what a batch costs, because each entry is one."""

from workloads import Workload

WORKLOAD = Workload("append 100 B, 1000 ledgers", ["--size", "100", "--outstanding", "1000", "--ledgers", "1000"])
