"""Entries of the usual size, 1000 in flight in one ledger: an append and its bytes cost about the same."""

from workloads import Workload

WORKLOAD = Workload("append 1 KB, 1000 in flight", ["--size", "1024", "--outstanding", "1000"])
