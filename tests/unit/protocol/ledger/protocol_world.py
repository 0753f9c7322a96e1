"""A world for the protocol's clients: bookies, the metadata of one ledger, and messages that somebody else delivers,
delays, loses or brings too late. One thread, no time.

`World.check` is the oracle: it looks at what is stored, not at what anybody believes. Each rule in `Safeguards` can be
left out, to see that the oracle notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.protocol.ledger.ensemble_change import members_of
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import Callable


class BrokenPromiseError(AssertionError):
    """The protocol has broken a promise."""


@dataclass(frozen=True)
class Safeguards:
    """Rules that the protocol can't do without."""

    recovery_reads_fence: bool = True
    nothing_is_acknowledged_during_a_change: bool = True
    replaced_bookies_count_no_more: bool = True
    unknown_outcomes_are_found_out: bool = True
    reading_starts_in_the_last_fragment: bool = True
    errors_deny_nothing: bool = True


class Record(NamedTuple):
    """An entry as it is stored; `last_add_confirmed` is what the writer knew when it sent it."""

    value: str
    last_add_confirmed: int


class Bookie:
    """Entries and a fence, both durable at once. While it is down it answers nothing."""

    def __init__(self) -> None:
        self.entries: dict[int, Record] = {}
        self.fenced = False
        self.up = True

    def add(self, records: dict[int, Record], *, recovering: bool) -> Status:
        if self.fenced and not recovering:
            return Status.FENCED
        self.entries.update(records)
        return Status.OK

    def fence(self) -> int:
        self.fenced = True
        return max((record.last_add_confirmed for record in self.entries.values()), default=-1)

    def read(self, first: int, last: int, limit: int, *, fence: bool) -> tuple[int, dict[int, Record]]:
        """As far as entry `first + limit`, or `last`: (examined to, what it has)."""
        self.fenced = self.fenced or fence
        examined_to = min(last, first + limit)
        return examined_to, {n: self.entries[n] for n in range(first, examined_to + 1) if n in self.entries}


class Unknown:
    """The outcome of a metadata write that the writer was not told of."""


@dataclass(eq=False)
class Call:
    """A request on its way and what its caller does with the answer; None says that none will come."""

    serve: Callable[[], Any]
    settle: Callable[[Any], None]
    bookie: Bookie | None  # None: the metadata store, which is always there
    reply: Any = None
    settled: bool = False


class World:
    def __init__(
        self,
        sizes: tuple[int, int, int],
        *,
        spares: int,
        safeguards: Safeguards,
        may_change: bool = True,
        delay_change: bool = False,
    ) -> None:
        self.safeguards = safeguards
        self.may_change = may_change
        self.delay_change = delay_change
        self.bookies = {f"b{i}": Bookie() for i in range(sizes[0] + spares)}
        self.value = LedgerMetadata(
            ledger_id=1,
            state=LedgerState.OPEN,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            digest="crc32c",
            ledger_key=bytes(32),
            fragments=(Fragment(0, tuple(self.bookies)[: sizes[0]]),),
        )
        self.version = 0
        self.requests: list[Call] = []
        self.replies: list[Call] = []
        self.acknowledged = -1  # the highest id that the writer has told its caller of

    # --- messages ---------------------------------------------------------------------------------------------------

    def call(self, name: str, serve: Callable[[Bookie], Any], settle: Callable[[Any], None]) -> None:
        bookie = self.bookies[name]
        self.requests.append(Call(partial(serve, bookie), settle, bookie))

    def put(self, value: LedgerMetadata, version: int, settle: Callable[[Any], None]) -> None:
        """Compare and swap; settles with the new version, with None for a conflict, or with `Unknown`."""
        self.requests.append(Call(partial(self._swap, value, version), settle, None))

    def _swap(self, value: LedgerMetadata, version: int) -> int | None:
        if version != self.version:
            return None
        if self.value.state is LedgerState.CLOSED and (
            (value.state, value.last_entry, value.length)
            != (self.value.state, self.value.last_entry, self.value.length)
        ):
            raise BrokenPromiseError("a closed ledger has changed its end")
        self.value = value
        self.version += 1
        return self.version

    def deliver(self, call: Call) -> None:
        """The request arrives, or finds that its bookie is down."""
        self.requests.remove(call)
        if call.bookie is not None and not call.bookie.up:
            self._settle(call, None)
            return
        call.reply = call.serve()
        if not call.settled:
            self.replies.append(call)

    def answer(self, call: Call) -> None:
        self.replies.remove(call)
        self._settle(call, call.reply)

    def give_up(self, call: Call) -> None:
        """The caller waits no longer. The request may still arrive."""
        if call in self.replies:
            self.replies.remove(call)
        self._settle(call, None if call.bookie is not None else Unknown)

    def _settle(self, call: Call, reply: Any) -> None:
        if not call.settled:
            call.settled = True
            call.settle(reply)

    # --- re-replication, in one step --------------------------------------------------------------------------------

    def move_copies(self, fragment_index: int, position: int, name: str) -> None:
        """Another bookie takes a place in a fragment that isn't the last, with copies of all that belongs there."""
        value = self.value
        fragment, following = value.fragments[fragment_index : fragment_index + 2]
        copies = {}
        for n in range(fragment.first_entry, following.first_entry):
            members = write_set(n, value.ensemble_size, value.write_quorum)
            if position in members:
                found_at = [self.bookies[fragment.bookies[i]] for i in members]
                copies[n] = next(bookie.entries[n] for bookie in found_at if n in bookie.entries)
        self.bookies[name].entries.update(copies)
        self.value = value.replace_bookie(fragment_index, position, name)
        self.version += 1

    # --- the oracle -------------------------------------------------------------------------------------------------

    def holders(self, entry_id: int) -> int:
        """How many of the bookies that the metadata name for the entry have it."""
        value = self.value
        names = members_of(entry_id, value.fragment_of(entry_id).bookies, value.write_quorum)
        return len([name for name in names if entry_id in self.bookies[name].entries])

    def check(self) -> None:
        value, acknowledged = self.value, self.acknowledged
        closed = value.state is LedgerState.CLOSED
        if closed and value.last_entry < acknowledged:
            raise BrokenPromiseError(
                f"entry {acknowledged} was acknowledged, and the ledger was closed at {value.last_entry}"
            )
        for n in range((value.last_entry if closed else acknowledged) + 1):
            if self.holders(n) < value.ack_quorum:
                raise BrokenPromiseError(f"entry {n} is on {self.holders(n)} of the bookies that should have it")
        for bookie in self.bookies.values():
            for n, record in bookie.entries.items():
                if record.last_add_confirmed >= n or record.value != f"entry {n}":
                    raise BrokenPromiseError(f"a bookie has {record} as entry {n}")
