"""The rules of protocol and storage, each of which can be switched off in this process, and what then notices it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

Switch = Callable[[], AbstractContextManager[Any]]


class Found(NamedTuple):
    """The first seed of a run that notices, and what its error says. `cheap`: the usual suite plays it."""

    run: str
    seed: int
    notice: str
    cheap: bool = False


@dataclass(frozen=True)
class Ablation:
    """One way to switch a rule off.

    `runs`: the names of runs whose seeds may notice. `schedule`: the test that plays a directed schedule, and fails.
    """

    rule: str
    title: str
    switch: Switch
    runs: tuple[str, ...] = ()
    schedule: str = ""
    found_by: Found | None = None

    @property
    def name(self) -> str:
        return f"{self.rule} {self.title}"
