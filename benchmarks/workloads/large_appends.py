"""Large entries, 2 MB in flight: kernel copies, checksums and the disk, and hardly anything else."""

from workloads import Workload

WORKLOAD = Workload("append 10 KB, 200 in flight", ["--size", "10240", "--outstanding", "200"])
