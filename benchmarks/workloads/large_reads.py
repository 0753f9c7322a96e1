"""Large entries read from end to end: bytes through sockets and checksums."""

from workloads import Workload

WORKLOAD = Workload("read 10 KB", ["--workload", "read", "--size", "10240", "--outstanding", "1"])
