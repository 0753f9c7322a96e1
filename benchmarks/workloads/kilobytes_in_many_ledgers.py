"""Entries of the usual size in a thousand ledgers: each flush of a memtable sorts and writes a thousand ledgers."""

from workloads import Workload

WORKLOAD = Workload("append 1 KB, 1000 ledgers", ["--size", "1024", "--outstanding", "1000", "--ledgers", "1000"])
