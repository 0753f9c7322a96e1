"""The faults of a run of chaos, drawn from its seed alone: the same seed and length give the same schedule."""

from __future__ import annotations

import random
from typing import NamedTuple

BOOKIES = ("a", "b", "c", "d", "e", "f")
SERVERS = ("1", "2", "3")
LOGS = ("alpha", "beta", "gamma")
STREAMED = "gamma"  # a Spark stream reads it, so nobody truncates it
EARLIER = ("d", "e")  # bookies that begin with an earlier version
SMALL = "f"  # the bookie whose file system can be filled up

# By lane, what may happen to whom, and how often beside the others of the lane. The faults of one lane don't overlap,
# those of different lanes do.
LANES: dict[str, dict[str, tuple[tuple[str, ...], int]]] = {
    "bookies": {
        "kill": (BOOKIES, 5),
        "suspend": (BOOKIES, 3),
        "restart": (BOOKIES, 3),
        "cut": (BOOKIES, 3),
        "delay": (BOOKIES, 3),
        "disk lost": (BOOKIES, 1),
        "disk full": ((SMALL,), 2),
    },
    "bookies as well": {
        "kill": (BOOKIES, 2),
        "suspend": (BOOKIES, 2),
        "restart": (BOOKIES, 1),
        "cut": (BOOKIES, 2),
        "delay": (BOOKIES, 2),
    },
    "metadata": {
        "leader restarted": (("",), 2),
        "server suspended": (SERVERS, 2),
        "server cut": (SERVERS, 2),
        "server slow": (SERVERS, 2),
        "connections reset": (("",), 2),
    },
    "clients": {
        "writer killed": (LOGS, 3),
        "writer suspended": (LOGS, 3),
        "rival": (LOGS, 3),
        "consumer killed": (LOGS, 2),
        "ledger writer killed": (("",), 2),
        "stream killed": (("",), 1),
    },
    "operators": {
        "drain": (BOOKIES, 1),
        "truncation": (tuple(log for log in LOGS if log != STREAMED), 2),
    },
}
_PAUSES_S = {
    "bookies": (0.5, 2.5),
    "bookies as well": (5.0, 20.0),
    "metadata": (5.0, 25.0),
    "clients": (2.0, 10.0),
    "operators": (5.0, 20.0),
}
_LASTS_S = (0.3, 5.0)
_LONG, _LONG_S = 0.1, (10.0, 25.0)  # a share of faults that outlive sessions and grace periods, and how long


class Fault(NamedTuple):
    """One fault; `target`: a bookie, a ZooKeeper server, a log, or empty where there is but one."""

    at_s: float
    lane: str
    kind: str
    target: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {' '.join((self.kind, self.target)).rstrip()}, for {self.lasts_s:.1f} s"


def draw(seed: int, length_s: float) -> list[Fault]:
    """The faults of a run that is `length_s` seconds long, in the order in which they begin."""
    faults = [fault for lane in LANES for fault in _drawn(lane, seed, length_s)]
    # The upgrades come one after the other in the first half, whatever else happens.
    for number, bookie in enumerate(EARLIER, 1):
        faults.append(Fault(length_s * number / (2 * len(EARLIER)), "upgrades", "upgrade", bookie, 0.0))
    return sorted(faults)


def _drawn(lane: str, seed: int, length_s: float) -> list[Fault]:
    rng = random.Random(f"chaos {lane} {seed}")
    kinds = LANES[lane]
    faults: list[Fault] = []
    at_s = rng.uniform(*_PAUSES_S[lane])
    while True:
        (kind,) = rng.choices(list(kinds), [weight for _, weight in kinds.values()])
        target = rng.choice(kinds[kind][0])
        lasts_s = rng.uniform(*(_LONG_S if rng.random() < _LONG else _LASTS_S))
        if at_s + lasts_s > length_s:
            return faults
        faults.append(Fault(at_s, lane, kind, target, lasts_s))
        at_s += lasts_s + rng.uniform(*_PAUSES_S[lane])
