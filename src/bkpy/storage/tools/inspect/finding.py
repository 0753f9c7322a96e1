"""The results of an inspection: things that are there, and damages, each with its place and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_MAX: Final = 20  # of many things that a finding is about


class Finding(NamedTuple):
    """One thing at one place. It is damage if `damage` says what is wrong; `advice` is what to do then.

    `facts` are plain values: numbers, texts, lists of them. A ledger's key is never among them.
    """

    kind: str
    path: str
    offset: int | None
    facts: dict[str, object]
    damage: str = ""
    advice: str = ""


COPIES = "the other bookies of the ledger's ensembles have copies"


def some(name: str, values: Sequence[object]) -> dict[str, object]:
    """A fact that names these, or the first of them and how many there are."""
    if len(values) <= SHOWN_MAX:
        return {name: list(values)}
    return {name: list(values[:SHOWN_MAX]), f"all_{name}": len(values)}


def damage(path: str, offset: int | None, what: str, advice: str, **facts: object) -> Finding:
    return Finding("damage", path, offset, facts, what, advice)


def note(path: str, offset: int | None, what: str, **facts: object) -> Finding:
    """Something to know, and nothing wrong."""
    return Finding("note", path, offset, {"note": what, **facts})
