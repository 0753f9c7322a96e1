"""A log that goes on in another ledger each second: its p99 has the one metadata write for which appends wait."""

from workloads import Workload

WORKLOAD = Workload(
    "append to a log that rolls each second", ["--size", "100", "--outstanding", "1000", "--log", "--roll", "1"]
)
