"""Splits an ADD by the shards or journals of its ledgers.

Invariant: the parts hold the batches of the frame, each once and in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgpack

from bkpy.protocol.wire.messages import AddColumns, select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.buffers import Bytes


class Part(NamedTuple):
    columns: AddColumns
    head: Bytes
    body: Bytes


def split(columns: AddColumns, head: Bytes, body: Bytes, owner: Callable[[int], int]) -> dict[int, Part]:
    """The batches by the owners of their ledgers; the frame as it is if there is only one."""
    owners = list(map(owner, columns.ledger_ids))
    if len(set(owners)) == 1:
        return {owners[0]: Part(columns, head, body)}
    view = memoryview(body)
    pieces: list[memoryview] = []
    start = 0
    for size in columns.sizes:
        pieces.append(view[start : start + size])
        start += size
    parts: dict[int, Part] = {}
    for number in sorted(set(owners)):
        keep: Sequence[int] = [i for i, its in enumerate(owners) if its == number]
        chosen = select(columns, keep)
        parts[number] = Part(chosen, msgpack.packb(list(chosen)), b"".join([pieces[i] for i in keep]))
    return parts


def after(count: int, callback: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `callback` when it is called for the `count`-th time."""
    left = count

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            callback()

    return one
