"""One reader from end to end of a ledger in the bookies' memory, an object for each entry, digests verified."""

from workloads import Workload

WORKLOAD = Workload("read 1 KB", ["--workload", "read", "--size", "1024", "--outstanding", "1"])
