"""The faults of a run of chaos, drawn from its seed alone: the same seed and length give the same schedule."""

from __future__ import annotations

import random
from typing import NamedTuple

BOOKIES = ("a", "b", "c", "d", "e", "f")
SERVERS = (0, 1, 2)
KINDS = ("kill", "suspend", "restart", "cut", "delay", "disk lost", "leader restarted", "server suspended")
_WEIGHTS = (5, 3, 3, 3, 3, 1, 2, 1)
_PAUSE_S = (0.5, 2.5)  # of calm between two faults
_LASTS_S = (0.3, 5.0)


class Fault(NamedTuple):
    """One fault. No two of them overlap: each ends before the next one begins, so that a majority always lives."""

    at_s: float
    kind: str
    target: str  # a bookie, or empty where ZooKeeper is concerned
    lasts_s: float
    server: int

    def __str__(self) -> str:
        target = self.target or f"ZooKeeper's server {self.server + 1}" * (self.kind != "leader restarted")
        return f"{self.at_s:7.1f} s  {self.kind} {target}".rstrip() + f", for {self.lasts_s:.1f} s"


def draw(seed: int, length_s: float) -> list[Fault]:
    """The faults of a run that is `length_s` seconds long, in the order in which they begin."""
    rng = random.Random(f"chaos {seed}")
    faults: list[Fault] = []
    at_s = rng.uniform(*_PAUSE_S)
    while True:
        (kind,) = rng.choices(KINDS, _WEIGHTS)
        bookie, server, lasts_s = rng.choice(BOOKIES), rng.choice(SERVERS), rng.uniform(*_LASTS_S)
        if at_s + lasts_s > length_s:
            return faults
        faults.append(Fault(at_s, kind, "" if kind.startswith(("leader", "server")) else bookie, lasts_s, server))
        at_s += lasts_s + rng.uniform(*_PAUSE_S)
