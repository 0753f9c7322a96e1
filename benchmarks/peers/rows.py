"""The rows of the comparison: what each system is asked to do, and the ratio that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP_WAIT_DEFAULT_MS: Final = 2  # the peer's journalMaxGroupWaitMSec, if nobody says otherwise
# The peer's client submits in one of two ways; which is faster depends on the load, so the warm-up decides.
DRIVES: Final = ("semaphore", "chain")
# It reads entry by entry (the call that its users know), or in batches (since 4.17, v2 protocol only): both are shown.
READ_MODES: Final = ("entries", "batch")


@dataclass(frozen=True)
class Row:
    """`outstanding` is appends in flight over all ledgers; a scan has what its system keeps in flight for it."""

    name: str
    workload: str
    size: int
    outstanding: int = 1
    ledgers: int = 1
    apis: tuple[tuple[str, int], ...] = (("append", 1),)  # our calls, and how many entries one of them carries
    group_wait_ms: int = GROUP_WAIT_DEFAULT_MS
    restart: bool = False
    seconds: float | None = None  # of a round, instead of the plan's: a sustained row
    rounds: int | None = None

    @property
    def further(self) -> bool:
        """Whether further peers have it: short appends, and not what only differs by a setting of Apache BookKeeper."""
        return self.workload == "append" and self.group_wait_ms == GROUP_WAIT_DEFAULT_MS and self.seconds is None

    def call(self, way: str) -> str:
        """What a way of Java's client is called beside the same of other bookies; each may append in its own way."""
        return way if self.workload == "read" else self.workload

    def our_arguments(self, api: str, entries: int) -> list[str]:
        """Of `bkpy bench`: the same entries in flight, in calls of `entries`."""
        calls = self.outstanding * 10 // entries if entries > 1 else self.outstanding
        return [
            *("--workload", self.workload, "--api", api, "--size", str(self.size)),
            *("--outstanding", str(calls), "--ledgers", str(self.ledgers)),
            *(("--restart",) if self.restart else ()),
        ]


_READ: Final = (("read", 1), ("read_blocks", 1))

# The rows with another group wait, or a restart, come last: both mean new processes for the peer.
ROWS: Final = (
    Row("100 B, 1000 outstanding", "append", 100, 1000, apis=(("append", 1), ("append_batch", 1000))),
    Row("100 B, 100 outstanding", "append", 100, 100),
    Row("100 B, 1 outstanding", "append", 100, 1),
    Row("100 B, 1000 ledgers", "append", 100, 1000, ledgers=1000),
    Row("1 KB, 1000 outstanding", "append", 1024, 1000),
    Row("1 KB, 1000 ledgers", "append", 1024, 1000, ledgers=1000),
    Row("10 KB, 200 outstanding", "append", 10240, 200),
    # Long enough for both to write out their memory several times: what a round of some seconds doesn't show.
    Row("10 KB, 200 outstanding, for a minute", "append", 10240, 200, seconds=60.0, rounds=3),
    Row("read 1 KB, from memory", "read", 1024, apis=_READ),
    Row("read 1 KB, after a restart", "read", 1024, apis=_READ, group_wait_ms=0, restart=True),
    Row("100 B, 1 outstanding, no group wait", "append", 100, 1, group_wait_ms=0),
)

# Java's client on bookies of both kinds. bkpy's client on Java's bookies stands beside it where there are `apis`.
SAME_CLIENT_ROWS: Final = (
    Row("100 B, 1000 outstanding", "append", 100, 1000),
    Row("1 KB, 1000 outstanding", "append", 1024, 1000),
    Row("1 KB, 1000 ledgers", "append", 1024, 1000, ledgers=1000, apis=()),
    Row("read 1 KB, from memory", "read", 1024, apis=(("read", 1),)),
)
