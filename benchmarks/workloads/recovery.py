"""Opening a ledger whose writer is gone, with 10,000 entries of which no bookie knows that they were acknowledged."""

from workloads import Failure

WORKLOAD = Failure("recovery of 10,000 entries of 1 KB", ["--workload", "recovery", "--size", "1024"], "recovery")
