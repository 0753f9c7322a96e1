"""Replies to READ_LAC and WAIT_LAC: how far a ledger is acknowledged, as far as the records in a reply prove it.

Such a reply holds the last entry that the bookie has, and the last add confirmed that the writer published by itself,
each if there is one. Readers and recoveries use it differently:

    reply                              a reader                           a recovery
    OK or NO_SUCH_LEDGER               counts                             counts, if the bookie is fenced
    UNKNOWN, with a record             counts: the record proves itself   counts, if the bookie is fenced
    UNKNOWN, without one               is no answer                       counts, if the bookie is fenced
    a record that doesn't verify       is no answer                       counts, for what was verified before it

A reader asks how far it may read, so a bookie that doesn't know must not count for its ack quorums. A recovery asks
whether the bookie is fenced, which holds whatever else the bookie doesn't know; it finds the ledger's end by
reading the entries one by one.

The explicit last add confirmed of a BookKeeper cluster has no length: its record has length -1.

Invariant: only a record whose digest matches raises last add confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError, DigestMismatchError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Status
from bkpy.protocol.wire.records import EXPLICIT_LAC_ENTRY, RecordCodec, walk

if TYPE_CHECKING:
    from bkpy.protocol.wire import frame as wire


class LastAddConfirmed(NamedTuple):
    """What a bookie proved. `length` is None where it isn't known exactly; -1 and 0 where it has no record at all.

    `measured` is an entry, perhaps an unconfirmed one, and the payload bytes up to it: what entries have on average.
    """

    entry_id: int
    length: int | None
    fenced: bool
    measured: tuple[int, int] = (-1, 0)


class LacReply(NamedTuple):
    """A bookie's answer. `flaw` is why it proves less than it should; None for a flawless one."""

    proven: LastAddConfirmed
    # The highest last add confirmed that the writer published and its length, -1 if unknown; -1, 0 for none.
    explicit: tuple[int, int]
    flaw: CorruptDataError | DigestMismatchError | None
    last_entry: int  # the last entry that the bookie has, -1 for none; verified like the rest


def parse_lac_reply(codec: RecordCodec, reply: wire.Frame, ledger_id: int, bookie_id: str) -> LacReply:
    """Raises the error that stands for the reply's status."""
    status = m.reply_status(reply.head)
    if status not in (Status.OK, Status.UNKNOWN, Status.NO_SUCH_LEDGER):
        raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=ledger_id, bookie=bookie_id)
    if status == Status.UNKNOWN and m.is_refusal(reply.head):
        raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=ledger_id, bookie=bookie_id)
    fenced = m.decode_read_lac_reply(reply.head).fenced
    explicit = (-1, 0)
    flaw: CorruptDataError | DigestMismatchError | None = None
    if status == Status.UNKNOWN and not len(reply.body):
        flaw = CorruptDataError("the bookie can't tell", ledger_id=ledger_id, bookie=bookie_id)
    best: LastAddConfirmed | None = None
    last_entry, measured = -1, (-1, 0)
    try:
        for header in walk(reply.body):
            codec.check(reply.body, header.offset, header.end)
            confirmed = header.last_add_confirmed
            is_explicit = header.entry_id == EXPLICIT_LAC_ENTRY
            if is_explicit:
                explicit = max(explicit, (confirmed, header.length))
            else:
                last_entry = max(last_entry, header.entry_id)
            if header.length >= 0:
                measured = max(measured, (confirmed if is_explicit else header.entry_id, header.length))
            if best is None or confirmed > best.entry_id:
                # An entry carries the length up to itself; what its last add confirmed had is at most that.
                exact = header.length if is_explicit and header.length >= 0 else None
                best = LastAddConfirmed(confirmed, exact, fenced)
    except (CorruptDataError, DigestMismatchError) as e:
        flaw = e
    best = best or LastAddConfirmed(-1, 0, fenced)
    return LacReply(best._replace(measured=measured), explicit, flaw, last_entry)


def proven_to_reader(codec: RecordCodec, reply: wire.Frame, ledger_id: int, bookie_id: str) -> LastAddConfirmed:
    """The part that a reader may rely on. Raises as `parse_lac_reply` does, and the flaw of a reply that has one."""
    parsed = parse_lac_reply(codec, reply, ledger_id, bookie_id)
    if parsed.flaw is not None:
        raise parsed.flaw
    return parsed.proven


def unverified_last_entry(reply: wire.Frame, ledger_id: int, bookie_id: str) -> int:
    """The last entry that the bookie has, -1 for none. Unproved: without the password a digest proves nothing.

    Raises the error that stands for the reply's status, and `CorruptDataError`.
    """
    status = m.reply_status(reply.head)
    if status not in (Status.OK, Status.NO_SUCH_LEDGER):
        message = "it can't tell" if status == Status.UNKNOWN else ""
        raise m.error_of(status, message, ledger_id=ledger_id, bookie=bookie_id)
    size = m.decode_read_lac_reply(reply.head).entry_bytes
    if not 0 <= size <= len(reply.body):
        raise CorruptDataError("a reply without the entry that it speaks of", ledger_id=ledger_id, bookie=bookie_id)
    return max((header.entry_id for header in walk(reply.body[:size])), default=-1)
