"""The standard workloads: one module each, which says what it shows and how `bkpy bench` is asked for it.

A new one is a module here and its name in `STANDARD`; `table.py` takes names, too.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Workload:
    """A rate: entries a second and their latencies. `arguments` are those of `bkpy bench`."""

    title: str
    arguments: list[str]


@dataclass(frozen=True)
class Failure:
    """A time in ms, in rounds: `figure` is its name in what `bkpy bench --json` prints."""

    title: str
    arguments: list[str]
    figure: str


STANDARD: Final = (
    "appends",
    "log_appends",
    "rolling_log_appends",
    "batched_appends",
    "few_in_flight",
    "one_in_flight",
    "many_ledgers",
    "kilobytes",
    "kilobytes_in_many_ledgers",
    "large_appends",
    "reads",
    "block_reads",
    "reads_after_a_restart",
    "large_reads",
    "bookie_killed",
    "bookie_killed_all_must_answer",
    "recovery",
    "restarts",
)


def load(name: str) -> Workload | Failure:
    found: Workload | Failure = importlib.import_module(f"workloads.{name}").WORKLOAD
    return found
