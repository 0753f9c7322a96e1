"""One seed of a run: its trace, and the hash of the trace.

python -m tests.sim standard 17
python -m tests.sim failover 17
"""

from __future__ import annotations

import sys

from .failover import failover_run
from .scenario import standard_run


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    cluster, run = {"standard": standard_run, "failover": failover_run}[name](seed)
    try:
        cluster.run(run)
    finally:
        for event in cluster.world.trace:
            print(event)
        print(cluster.world.trace_hash())


if __name__ == "__main__":
    main()
