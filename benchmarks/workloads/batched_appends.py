"""The same bytes a thousand entries a call: what is left of an entry's cost when nobody waits for it alone."""

from workloads import Workload

WORKLOAD = Workload(
    "append_batch 10 x 1000 of 100 B", ["--size", "100", "--outstanding", "10", "--api", "append_batch"]
)
