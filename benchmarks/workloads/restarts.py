"""A start after `kill -9`, with a million entries in 10,000 ledgers stored: replayed is the journal that is left."""

from workloads import Failure

WORKLOAD = Failure(
    "restart with 1,000,000 entries of 100 B in 10,000 ledgers",
    ["--workload", "restart", "--size", "100", "--entries", "1000000", "--ledgers", "10000"],
    "restart",
)
