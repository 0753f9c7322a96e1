"""Which entries of a ledger bookies return intact, by asking them and verifying what they send.

Invariants: what was damaged, or cut off, on its way or on the disk, is not intact; a bookie that gives no answer is an
error, and says nothing of what it has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import BookKeeperError, CorruptDataError, DigestMismatchError
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.checks import missing, wanted
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Copy
    from bkpy.replication.context import ReplicationContext

log = logging.getLogger("bkpy.recovery")


class Unreturned(NamedTuple):
    """Ranges of entries that nobody returns; `doubt`: a bookie gave no answer, and others may be on it."""

    ranges: list[tuple[int, int]]
    doubt: BookKeeperError | None


class Held(NamedTuple):
    """The bookie has examined up to entry `examined_to`, and returned these intact, in `size` bytes."""

    examined_to: int
    intact: set[int]
    size: int


async def held_entries(
    context: ReplicationContext, metadata: LedgerMetadata, bookie_id: str, first: int, last: int, read_bytes: int
) -> Held:
    """What the bookie has of first..last, up to about `read_bytes`: at least entry `first` is examined."""
    head = m.pack([0, metadata.ledger_id, first, last, read_bytes])
    frame = await context.parts.pool.channel(bookie_id).call(
        Op.READ, head, timeout_s=context.parts.settings.read_timeout_s
    )
    status = m.reply_status(frame.head)
    if status == Status.NO_SUCH_LEDGER:
        return Held(last, set(), 0)
    if status != Status.OK:
        raise m.error_of(status, m.decode_error(frame.head).message, ledger_id=metadata.ledger_id, bookie=bookie_id)
    reply = m.decode_read_reply(frame.head)
    codec = RecordCodec(metadata.ledger_id)
    intact: set[int] = set()
    try:
        for header in walk(frame.body):
            try:
                codec.check(frame.body, header.offset, header.end)
            except DigestMismatchError:
                continue
            intact.add(header.entry_id)
    except CorruptDataError:
        log.warning("ledger %d: what %s returned can't be read to its end", metadata.ledger_id, bookie_id)
    return Held(max(first, min(reply.examined_to, last)), intact, len(frame.body))


async def certainly_lost(
    context: ReplicationContext, metadata: LedgerMetadata, first: int, last: int, read_bytes: int
) -> bool:
    """Whether nobody has entries `first` to `last`, of one fragment, or ever will have them again.

    Each bookie of their write sets denies all of them; or it is not registered, and was given up when the loss of the
    ledger's end was accepted. One that is registered and gives no answer, can't tell, or returns something, even if it
    is damaged, may have them.
    """
    loss, fragment = metadata.accepted_loss, metadata.fragment_of(first)
    readable = context.bookies().readable
    entries = range(first, min(last, first + metadata.ensemble_size - 1) + 1)
    places = {i for n in entries for i in write_set(n, metadata.ensemble_size, metadata.write_quorum)}
    for name in (fragment.bookies[i] for i in sorted(places)):
        given_up = loss is not None and name in loss.bookies and name not in readable
        if not given_up and not await _denies(context, metadata, name, first, last, read_bytes):
            return False
    return True


async def _denies(
    context: ReplicationContext, metadata: LedgerMetadata, bookie_id: str, first: int, last: int, read_bytes: int
) -> bool:
    """Whether the bookie says of each of these entries that it never acknowledged it."""
    while first <= last:
        head = m.pack([0, metadata.ledger_id, first, last, read_bytes])
        try:
            frame = await context.parts.pool.channel(bookie_id).call(
                Op.READ, head, timeout_s=context.parts.settings.read_timeout_s
            )
        except BookKeeperError:
            return False
        status = m.reply_status(frame.head)
        if status != Status.OK:
            return status == Status.NO_SUCH_LEDGER
        reply = m.decode_read_reply(frame.head)
        if len(frame.body) or reply.unknown or reply.examined_to < first:
            return False
        first = reply.examined_to + 1
    return True


async def unreadable(
    context: ReplicationContext,
    metadata: LedgerMetadata,
    copy: Copy,
    *,
    read_bytes: int,
    ranges_max: int,
    looked_at: Callable[[int], None] = lambda entry_id: None,
) -> Unreturned:
    """The entries that are to be copied and that nobody returns intact now: the first `ranges_max` ranges of them.

    A range ends at an entry of the share that somebody has, or may have. All of the share is read, once where the first
    bookie that is asked has it.
    """
    readable = context.bookies().readable
    names = [name for name in metadata.fragments[copy.fragment].bookies if name in readable]
    names.sort(key=lambda name: name == copy.old)
    ranges: list[tuple[int, int]] = []
    doubt: BookKeeperError | None = None
    open_range = False
    following = copy.first
    while following <= copy.last:
        end, absent, error = await _nowhere(context, metadata, copy, names, following, read_bytes)
        doubt = doubt or error
        for entry_id in wanted(copy.share, following, end):
            if entry_id not in absent:
                open_range = False
            elif open_range:
                ranges[-1] = ranges[-1][0], entry_id
            elif len(ranges) == ranges_max:
                return Unreturned(ranges, doubt)
            else:
                ranges.append((entry_id, entry_id))
                open_range = True
        looked_at(end)
        following = end + 1
    return Unreturned(ranges, doubt)


async def _nowhere(
    context: ReplicationContext, metadata: LedgerMetadata, copy: Copy, names: list[str], first: int, read_bytes: int
) -> tuple[int, set[int], BookKeeperError | None]:
    """Up to where it was looked, and what of the share up to there none of these bookies returns intact.

    The error is that of a bookie which gave no answer, and may have others of them.
    """
    share, last = copy.share, copy.last
    end: int | None = None
    absent: list[int] = []
    silent: dict[str, BookKeeperError] = {}
    for name in names:
        following = first if end is None else absent[0]
        try:
            while following <= (last if end is None else end):
                held = await held_entries(context, metadata, name, following, last if end is None else end, read_bytes)
                if end is None:
                    end, absent = held.examined_to, missing(share, first, held.examined_to, held.intact)
                else:
                    absent = [entry_id for entry_id in absent if entry_id not in held.intact]
                following = held.examined_to + 1
        except BookKeeperError as error:
            silent[name] = error  # another one may do
            continue
        if not absent:
            break
    if end is None:  # some at a time: a record has more than a byte
        end = min(last, first + read_bytes)
        absent = list(wanted(share, first, end))
    places = metadata.fragments[copy.fragment].bookies
    certain: set[int] = set()
    doubt: BookKeeperError | None = None
    for entry_id in absent:
        members = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        unanswered = [silent[places[i]] for i in members if places[i] in silent]
        if unanswered:
            doubt = unanswered[0]
        else:
            certain.add(entry_id)
    return end, certain, doubt
