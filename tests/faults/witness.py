"""What each bookie by itself has acknowledged, seen where its answers arrive, and what it says of that later.

A client counts an entry as acknowledged when an ack quorum has it. A bookie promises more: whatever it has said yes to
it never denies, whether the client ever heard of it or not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bkpy.client.bookies.channel import BookieChannel
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import HEADER_BYTES, walk
from tests.hooks import pool_of

from .oracle import named

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    import bkpy

_READ_BYTES = 1 << 20
_READ_TIMEOUT_S = 60.0


class Witness:
    """`acknowledged[bookie][ledger]` are the payloads' hashes by entry id. Ledgers that are deleted are forgotten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acknowledged: defaultdict[str, defaultdict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
        self._forgotten: set[int] = set()
        add = BookieChannel.add

        def watched(channel: BookieChannel, request: Any, index: int) -> None:
            if not isinstance(request, _Watched):
                request = _Watched(request, self._heard, channel.bookie_id)
            add(channel, request, index)

        monkeypatch.setattr(BookieChannel, "add", watched)

    def forget(self, ledger_id: int) -> None:
        """The ledger is about to be deleted: its bookies may deny it from now on."""
        self._forgotten.add(ledger_id)
        for ledgers in self.acknowledged.values():
            ledgers.pop(ledger_id, None)

    def _heard(self, bookie_id: str, columns: m.AddColumns, body: memoryview, statuses: int | list[int]) -> None:
        at = 0
        for number, (ledger_id, size) in enumerate(zip(columns.ledger_ids, columns.sizes, strict=True)):
            status = statuses[number] if isinstance(statuses, list) else statuses
            if status == Status.OK and ledger_id not in self._forgotten:
                self.acknowledged[bookie_id][ledger_id].update(_payloads(body[at : at + size]))
            at += size

    def copies(self, ledger_id: int, entry_id: int) -> int:
        """How many bookies have acknowledged the entry."""
        return sum(entry_id in ledgers.get(ledger_id, ()) for ledgers in self.acknowledged.values())

    async def check(self, client: bkpy.Client, bookie_id: str) -> int:
        """Demand of the bookie all that it has acknowledged until now; how many entries that were."""
        checked = 0
        for ledger_id, payloads in list(self.acknowledged[bookie_id].items()):
            wanted = dict(payloads)
            wrong = await _differences(client, bookie_id, ledger_id, wanted)
            if ledger_id not in self._forgotten:  # else it was deleted while it was read
                assert not wrong, f"{bookie_id}, ledger {ledger_id}, {len(wanted)} acknowledged: {wrong}"
                checked += len(wanted)
        return checked


async def _differences(client: bkpy.Client, bookie_id: str, ledger_id: int, wanted: dict[int, int]) -> list[str]:
    """What the bookie does not give back as it acknowledged it, in words."""
    channel = pool_of(client).channel(bookie_id)
    first, last = min(wanted), max(wanted)
    found: dict[int, int] = {}
    unknown: set[int] = set()
    while first <= last:
        head = m.pack([0, ledger_id, first, last, _READ_BYTES])
        reply = await channel.call(Op.READ, head, timeout_s=_READ_TIMEOUT_S, again=True)
        status = m.reply_status(reply.head)
        if status != Status.OK:
            return [f"{Status(status).name}: {m.decode_error(reply.head).message}"]
        found |= _payloads(reply.body)
        answer = m.decode_read_reply(reply.head)
        for low, high in answer.unknown:
            unknown.update(range(low, high + 1))
        first = answer.examined_to + 1
    missing = wanted.keys() - found.keys()
    accounts = (
        ("denied", missing - unknown),
        ("unknown", missing & unknown),
        ("with other bytes", {i for i in wanted.keys() & found.keys() if found[i] != wanted[i]}),
    )
    return [f"{what}: {named(sorted(ids))}" for what, ids in accounts if ids]


def _payloads(records: memoryview) -> dict[int, int]:
    return {
        header.entry_id: hash(bytes(records[header.offset + HEADER_BYTES : header.end])) for header in walk(records)
    }


class _Watched:
    """An ADD frame whose answer is heard by a witness before it is by the one that has sent it."""

    def __init__(self, add: Any, heard: Callable[[str, m.AddColumns, memoryview, Any], None], bookie_id: str) -> None:
        self.buffers = add.buffers
        self.correlation_id = add.correlation_id
        self.body_bytes = add.body_bytes
        self.ledger_ids = add.ledger_ids
        self.failed = add.failed
        self._add = add
        self._heard = heard
        self._bookie_id = bookie_id

    def replied(self, index: int, head: memoryview) -> None:
        columns = m.decode_add(memoryview(self.buffers[0])[wire.PREFIX_BYTES :], self.body_bytes)
        body = memoryview(b"".join(self.buffers[1:]))
        self._heard(self._bookie_id, columns, body, m.decode_add_reply(head, len(columns.ledger_ids)))
        self._add.replied(index, head)
