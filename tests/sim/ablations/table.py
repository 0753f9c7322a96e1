"""The table of docs/explanation/simulation.md: what was switched off, and what noticed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registry import ABLATIONS

if TYPE_CHECKING:
    from . import Ablation


def table() -> list[str]:
    """Its lines."""
    head = ["| rule | switched off | first seed | what says so | schedule |", "| --- | --- | --- | --- | --- |"]
    return head + [_row(one) for one in ABLATIONS]


def _row(one: Ablation) -> str:
    seed = notice = ""
    if one.found_by is not None:
        seed, notice = f"{one.found_by.run} {one.found_by.seed}", one.found_by.notice
    schedule = one.schedule.partition("[")[0].rpartition("/")[2]
    return f"| {one.rule} | {one.title} | {seed} | {notice} | {schedule and f'`{schedule}`'} |"
