"""The same reader after the bookies were started again: from the entry log, whose pages the system has cached."""

from workloads import Workload

WORKLOAD = Workload(
    "read 1 KB after a restart", ["--workload", "read", "--size", "1024", "--outstanding", "1", "--restart"]
)
