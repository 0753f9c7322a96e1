"""The same in blocks: no object for each entry, digests verified all the same."""

from workloads import Workload

WORKLOAD = Workload(
    "read_blocks 1 KB", ["--workload", "read", "--size", "1024", "--outstanding", "1", "--api", "read_blocks"]
)
