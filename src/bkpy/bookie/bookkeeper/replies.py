"""What a request of v2 or v3 is answered with: one function an operation, whichever protocol the request came by.

The header of a request of v3 says which request an answer is for. A request of v2 has none (None here): its answer
names the ledger and the entry.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.statuses import PACKET_CODES, STATUS_CODES, StatusCode

if TYPE_CHECKING:
    from bkpy.buffers import Bytes
    from bkpy.protocol.bookkeeper.messages import RequestHeader
    from bkpy.protocol.wire.messages import Status

_ENTRY = struct.Struct(">qqqq")


class FoundEntry(NamedTuple):
    """An entry as the storage has it: what its record's header says, and the rest, which is not copied."""

    entry_id: int
    last_add_confirmed: int
    length: int
    rest: memoryview

    def entry(self, ledger_id: int) -> tuple[bytes, memoryview]:
        """Its bytes, in two parts."""
        return _ENTRY.pack(ledger_id, self.entry_id, self.last_add_confirmed, self.length), self.rest


def code_of(status: Status) -> StatusCode:
    """The status in an answer. UNAVAILABLE, where the connection isn't closed: the bookie can't tell."""
    code = STATUS_CODES[status]
    return StatusCode.EUNKNOWNLEDGERSTATE if code is None else code


def added(header: RequestHeader | None, ledger_id: int, entry_id: int, code: StatusCode = StatusCode.EOK) -> bytes:
    """The answer to an add."""
    if header is None:
        return b"".join(p.encode_add_reply(PACKET_CODES[code], ledger_id, entry_id))
    return m.encode_added(header.transaction_id, code, ledger_id, entry_id)


def read(
    header: RequestHeader | None,
    ledger_id: int,
    entry_id: int,
    code: StatusCode,
    found: FoundEntry | None = None,
    max_lac: int | None = None,
) -> list[Bytes]:
    """The answer to a read of one entry; v2 has no `max_lac`."""
    if header is None:
        parts = () if found is None else found.entry(ledger_id)
        return p.encode_read_reply(PACKET_CODES[code], ledger_id, entry_id, *parts)
    body = None if found is None else b"".join(found.entry(ledger_id))
    return m.encode_response(header, m.ReadEntryResponse(code, ledger_id, entry_id, body, max_lac))
