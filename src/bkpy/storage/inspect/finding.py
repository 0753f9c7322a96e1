"""What an inspection says, piece by piece: a thing that is there, or damage, with its place and what to do about it."""

from __future__ import annotations

from typing import NamedTuple


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


def damage(path: str, offset: int | None, what: str, advice: str, **facts: object) -> Finding:
    return Finding("damage", path, offset, facts, what, advice)


def note(path: str, offset: int | None, what: str, **facts: object) -> Finding:
    """Something to know, and nothing wrong."""
    return Finding("note", path, offset, {"note": what, **facts})
