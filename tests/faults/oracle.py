"""What the user of one ledger was promised, and an account of whether it was kept.

A promise is an acknowledged append, or an entry that a reader has returned. Every payload carries the ledger's id, the
number of the append in the order of the calls, and a digest, so that an entry speaks for itself: an append whose
outcome is unknown may be in the ledger or not, but whatever is in it was appended, once, and in that order.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import bkpy
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, digest_key, walk
from tests.hooks import pool_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_HEAD = struct.Struct(">QQI")  # ledger id, number, size of the filler
_DIGEST_BYTES = 8
_READ_TIMEOUT_S = 30.0
_NAMED_MAX = 10  # entries that a report names one by one


class BrokenPromiseError(AssertionError):
    """The ledger is not what its users were told."""


# --- payloads -------------------------------------------------------------------------------------------------------


def make_payload(ledger_id: int, number: int, rng: random.Random, filler_bytes: int) -> bytes:
    body = _HEAD.pack(ledger_id, number, filler_bytes) + rng.randbytes(filler_bytes)
    return body + _digest(body)


def number_of(ledger_id: int, payload: bytes) -> int:
    """Which append of this ledger the payload is from; `ValueError` if none."""
    body = payload[:-_DIGEST_BYTES]
    if len(body) < _HEAD.size or _digest(body) != payload[-_DIGEST_BYTES:]:
        raise ValueError(f"{len(payload)} bytes that nobody appended")
    ledger, number, filler_bytes = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + filler_bytes:
        raise ValueError(f"{len(payload)} bytes that nobody appended")
    if ledger != ledger_id:
        raise ValueError(f"append {number} of ledger {ledger}")
    return int(number)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


# --- promises -------------------------------------------------------------------------------------------------------


class Promise(NamedTuple):
    number: int
    digest: str
    size: int


@dataclass
class Promises:
    """What is known of one ledger from outside. What can be seen to be wrong at once goes into `violations`."""

    ledger_id: int
    acknowledged: dict[int, Promise] = field(default_factory=dict)  # by entry id
    seen: dict[int, str] = field(default_factory=dict)  # by entry id, the digest of what readers returned
    refused: dict[int, str] = field(default_factory=dict)  # by number: told that it was not written
    unknown: dict[int, str] = field(default_factory=dict)  # by number: may have been written
    cancelled: set[int] = field(default_factory=set)  # by number: the call was cancelled, so nothing is known
    sent: int | None = 0  # appends that were called; None if that isn't known, because the writer was killed
    violations: list[str] = field(default_factory=list)
    last_add_confirmed: int = -1
    _log: int | None = None

    def next_number(self) -> int:
        assert self.sent is not None
        self.sent += 1
        return self.sent - 1

    def acked(self, entry_id: int, payload: bytes, last_add_confirmed: int) -> None:
        """An append has returned `entry_id`, and the writer's last add confirmed is now that."""
        promise = Promise(number_of(self.ledger_id, payload), _digest(payload).hex(), len(payload))
        self._acked(entry_id, promise)
        if last_add_confirmed < entry_id:
            self._broken(f"entry {entry_id} was acknowledged when last add confirmed was {last_add_confirmed}")
        self.confirmed(last_add_confirmed)
        if self._log is not None:
            os.write(self._log, json.dumps([entry_id, *promise]).encode() + b"\n")

    def _acked(self, entry_id: int, promise: Promise) -> None:
        if entry_id in self.acknowledged:
            self._broken(f"entry {entry_id} was acknowledged twice")
        elif self.acknowledged:
            previous = next(reversed(self.acknowledged))
            if entry_id < previous:
                self._broken(f"entry {entry_id} was acknowledged after entry {previous}")
        self.acknowledged[entry_id] = promise

    def confirmed(self, last_add_confirmed: int) -> None:
        """The writer's last add confirmed is now that."""
        if last_add_confirmed < self.last_add_confirmed:
            self._broken(f"last add confirmed went from {self.last_add_confirmed} back to {last_add_confirmed}")
        self.last_add_confirmed = last_add_confirmed

    def failed(self, number: int, error: bkpy.BookKeeperError) -> None:
        outcomes = self.unknown if error.outcome_unknown else self.refused
        outcomes[number] = f"{type(error).__name__}: {error}"

    def returned(self, entry_id: int, data: bytes) -> None:
        """A reader has returned the entry: nobody may ever read anything else there."""
        digest = _digest(data).hex()
        if self.seen.setdefault(entry_id, digest) != digest:
            self._broken(f"entry {entry_id} was read with different bytes at different times")

    def _broken(self, what: str) -> None:
        self.violations.append(what)

    # --- in another process -----------------------------------------------------------------------------------------

    def log_to(self, path: Path) -> None:
        """Write each acknowledgement to the file when it comes. What was written outlives the death of the process."""
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(self._log, json.dumps(self.ledger_id).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> Promises:
        """What a process that was killed has logged. A last line that was cut is no promise: nobody was told."""
        lines = path.read_bytes().split(b"\n")[:-1]
        promises = cls(int(lines[0]), sent=None)
        for line in lines[1:]:
            entry_id, *promise = json.loads(line)
            promises._acked(entry_id, Promise(*promise))
        return promises


# --- the account ----------------------------------------------------------------------------------------------------


@dataclass
class Contents:
    """What a client finds in a ledger."""

    state: str
    last_entry: int
    length: int
    entries: Sequence[tuple[int, bytes]]  # in the order in which they were read
    past_the_end: Sequence[int] = ()  # ids that could be read and should not be there


def account(promises: Promises, contents: Contents) -> list[str]:
    """Everything that is wrong, in words; nothing if every promise was kept."""
    return [what for _, what in findings(promises, contents)]


def findings(promises: Promises, contents: Contents) -> list[tuple[str, str]]:
    """The same, each with the invariant of the protocol that doesn't hold."""
    wrong = [("I4", what) for what in promises.violations]
    if contents.state != "CLOSED":
        wrong.append(("I10", f"the ledger is {contents.state}"))
    wrong += [("I2", what) for what in _order(contents)]
    if past := [i for i in promises.acknowledged if i > contents.last_entry]:
        wrong.append(("I1", f"acknowledged and past the last entry, which is {contents.last_entry}: {named(past)}"))
    if past := [i for i in promises.seen if i > contents.last_entry]:
        wrong.append(("I5", f"read before and past the last entry, which is {contents.last_entry}: {named(past)}"))
    if contents.past_the_end:
        past = [*contents.past_the_end]
        wrong.append(("I5", f"readable past the last entry, which is {contents.last_entry}: {named(past)}"))
    length = sum(len(data) for _, data in contents.entries)
    if contents.length != length:
        wrong.append(("I3", f"the ledger's length is {contents.length}, its entries have {length} bytes"))
    wrong += [("I2", what) for what in _bytes(promises, contents)]
    wrong += [("I4", what) for what in _numbers(promises, contents)]
    return wrong


def _order(contents: Contents) -> list[str]:
    ids = [entry_id for entry_id, _ in contents.entries]
    if ids == list(range(contents.last_entry + 1)):
        return []
    wrong = [f"what was read is not 0 to {contents.last_entry} in order, but {len(ids)} entries"]
    if missing := sorted(set(range(contents.last_entry + 1)) - set(ids)):
        wrong.append(f"not there: {named(missing)}")
    if extra := sorted(set(ids) - set(range(contents.last_entry + 1))):
        wrong.append(f"never to be read: {named(extra)}")
    if turned := [b for a, b in pairwise(ids) if b <= a]:
        wrong.append(f"read out of order: {named(turned)}")
    return wrong


def _bytes(promises: Promises, contents: Contents) -> list[str]:
    found = {entry_id: _digest(data).hex() for entry_id, data in contents.entries}
    wrong = []
    acknowledged = {i: p.digest for i, p in promises.acknowledged.items()}
    for told, digests in (("acknowledged", acknowledged), ("read before", promises.seen)):
        if lost := [i for i in digests if i not in found and i <= contents.last_entry]:
            wrong.append(f"{told} and lost: {named(lost)}")
        if changed := [i for i, digest in digests.items() if found.get(i, digest) != digest]:
            wrong.append(f"{told} with other bytes: {named(changed)}")
    return wrong


def _numbers(promises: Promises, contents: Contents) -> list[str]:
    """The entries are the appends in the order of the calls, each once, and none left out but those refused."""
    wrong = []
    strangers: list[int] = []
    numbers: list[int] = []
    for entry_id, data in contents.entries:
        try:
            numbers.append(number_of(promises.ledger_id, data))
        except ValueError:
            strangers.append(entry_id)
    if strangers:
        wrong.append(f"not from this writer: {named(strangers)}")
    if numbers != sorted(set(numbers)):
        turned = [b for a, b in pairwise(numbers) if b <= a]
        wrong.append(f"appends that come twice or in another order than they were called: {named(turned)}")
    present = set(numbers)
    if there := sorted(promises.refused.keys() & present):
        wrong.append(f"refused and there all the same: appends {named(there)}: {promises.refused[there[0]]}")
    skipped = set(range(max(present, default=-1) + 1)) - present - promises.refused.keys() - promises.cancelled
    if skipped:
        wrong.append(f"not there, though later ones are: appends {named(sorted(skipped))}")
    if promises.sent is not None and (invented := sorted(n for n in present if n >= promises.sent)):
        wrong.append(f"never called: appends {named(invented)}")
    return wrong


def named(ids: Iterable[int]) -> str:
    several = list(ids)
    named = ", ".join(map(str, several[:_NAMED_MAX]))
    return named if len(several) <= _NAMED_MAX else f"{named} ... ({len(several)} in all)"


def demand(promises: Promises, contents: Contents) -> None:
    """`BrokenPromiseError` with the whole account if anything is wrong."""
    wrong = account(promises, contents)
    if wrong:
        told = (
            f"ledger {promises.ledger_id}: {len(promises.acknowledged)} acknowledged up to entry "
            f"{max(promises.acknowledged, default=-1)}, {len(promises.unknown)} unknown, "
            f"{len(promises.refused)} refused; closed at {contents.last_entry} with {contents.length} bytes"
        )
        raise BrokenPromiseError("\n  ".join((told, *wrong)))


# --- reading it back ------------------------------------------------------------------------------------------------


async def read_back(client: bkpy.Client, ledger_id: int, password: bytes = b"") -> Contents:
    """All of a closed ledger, and what could be read past its end."""
    metadata = await client.ledger_metadata(ledger_id)
    reader = await client.open_ledger(ledger_id, password=password)
    last = metadata.last_entry
    if metadata.state == "CLOSED":
        assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, last, metadata.length)
    entries = [(entry.entry_id, entry.data) async for entry in reader.read()]
    past_the_end: list[int] = []
    for first, end in ((0, last + 1), (last + 1, last + 1), (last + 1, last + 1000)):
        try:
            past_the_end += [entry.entry_id async for entry in reader.read(first, end) if entry.entry_id > last]
        except bkpy.NoSuchEntryError:
            continue
        past_the_end.append(end)  # no error is as wrong as an entry
    await reader.close()
    return Contents(metadata.state, last, metadata.length, entries, sorted(set(past_the_end)))


async def check(client: bkpy.Client, promises: Promises, password: bytes = b"") -> Contents:
    """Read the closed ledger with a client that has not seen it, and demand that every promise was kept."""
    contents = await read_back(client, promises.ledger_id, password)
    demand(promises, contents)
    return contents


async def replicas(client: bkpy.Client, ledger_id: int, password: bytes = b"") -> dict[int, set[str]]:
    """Which of the bookies that the metadata name for each entry of a closed ledger have a sound copy of it."""
    metadata = await client.ledger_metadata(ledger_id)
    codec = RecordCodec(ledger_id, metadata.digest, digest_key(password))
    held: dict[int, set[str]] = defaultdict(set)
    ends = [following.first_entry - 1 for following in metadata.fragments[1:]] + [metadata.last_entry]
    for fragment, last in zip(metadata.fragments, ends, strict=True):
        for index, bookie_id in enumerate(fragment.bookies):
            for entry_id in await _held(client, codec, ledger_id, bookie_id, fragment.first_entry, last):
                if index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                    held[entry_id].add(bookie_id)
    return held


async def _held(
    client: bkpy.Client, codec: RecordCodec, ledger_id: int, bookie_id: str, first: int, last: int
) -> set[int]:
    """The entries of first..last of which the bookie returns a sound copy."""
    held: set[int] = set()
    while first <= last:
        head = m.pack([0, ledger_id, first, last, 1 << 20])
        reply = await pool_of(client).channel(bookie_id).call(Op.READ, head, timeout_s=_READ_TIMEOUT_S)
        status = m.reply_status(reply.head)
        if status == Status.NO_SUCH_LEDGER:
            return held
        if status != Status.OK:
            raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=ledger_id, bookie=bookie_id)
        for header in walk(reply.body):
            codec.check(reply.body, header.offset, header.end)
            held.add(header.entry_id)
        first = m.decode_read_reply(reply.head).examined_to + 1
    return held


async def check_replicas(client: bkpy.Client, ledger_id: int, password: bytes = b"") -> None:
    """Each entry of the closed ledger is on an ack quorum of its bookies. All of them have to be reachable."""
    metadata = await client.ledger_metadata(ledger_id)
    held = await replicas(client, ledger_id, password)
    few = [i for i in range(metadata.last_entry + 1) if len(held.get(i, ())) < metadata.ack_quorum]
    if few:
        raise BrokenPromiseError(
            f"ledger {ledger_id}: on fewer than {metadata.ack_quorum} of their bookies: {named(few)}; "
            f"entry {few[0]} is on {sorted(held.get(few[0], ())) or 'none'}"
        )
