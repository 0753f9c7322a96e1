"""What a run of chaos demands of a log: acknowledged entries are there, unaltered, once, and in order.

Each opening of the log for writing has a number of its own, its *term*, and a file to which its process appends what is
acknowledged. Every payload carries the log's name, the term, its number in the order of the term's calls, and a digest.
An append whose outcome is unknown is never repeated, and a term appends nothing after its first failure. So a term's
entries are a prefix of what it appended, and no other term's entries are among them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DIGEST_BYTES = 8
_HEAD = struct.Struct(">QQ")  # term, number
_NAMED_MAX = 10

Known = tuple[int, str]  # a position and the digest of its payload


class Read(NamedTuple):
    position: int
    payload: bytes


def make_payload(log: str, term: int, number: int, filler: bytes) -> bytes:
    body = _HEAD.pack(term, number) + filler
    return body + digest(log.encode() + body)


def call_of(log: str, payload: bytes) -> tuple[int, int]:
    """The term and the number of the append; `ValueError` for bytes that no writer of this log appended."""
    body, end = payload[:-_DIGEST_BYTES], payload[-_DIGEST_BYTES:]
    if len(body) < _HEAD.size or digest(log.encode() + body) != end:
        raise ValueError(f"{len(payload)} bytes that no writer of {log} appended")
    term, number = _HEAD.unpack_from(body)
    return int(term), int(number)


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Record:
    """A file with a line for each entry: its position and its digest. What is written outlives a killed process."""

    def __init__(self, path: Path) -> None:
        whole = 0
        self.count = 0
        if path.exists():  # by a process that was killed, perhaps in the midst of a line
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            self.count = data.count(b"\n")
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._file.truncate(whole)

    def add(self, entries: Sequence[Read]) -> None:
        lines = (json.dumps([entry.position, digest(entry.payload).hex()]) for entry in entries)
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self.count += len(entries)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def load(path: Path) -> list[Known]:
        """All whole lines. A process that died in the midst of the last one has acknowledged nothing by it."""
        lines = path.read_bytes().split(b"\n")[:-1]
        return [(int(position), str(known)) for position, known in map(json.loads, lines)]


def account(log: str, acknowledged: Sequence[Known], found: Sequence[Read], first: int = 0) -> list[str]:
    """Everything that is wrong with a log that was read from its first position to its last; nothing if it is right.

    `acknowledged`: by all terms, those of one term in the order in which they were.
    """
    wrong = _not_dense([entry.position for entry in found], "the log", first)
    digests = {entry.position: digest(entry.payload).hex() for entry in found}
    wrong += _named("acknowledged and lost", [at for at, _ in acknowledged if at >= first and at not in digests])
    wrong += _named(
        "acknowledged with other bytes", [at for at, known in acknowledged if digests.get(at, known) != known]
    )
    wrong += _named("acknowledged twice", [b for (a, _), (b, _) in pairwise(sorted(acknowledged)) if a == b])
    calls: list[tuple[int, int, int]] = []
    strangers: list[int] = []
    for entry in found:
        try:
            calls.append((entry.position, *call_of(log, entry.payload)))
        except ValueError:
            strangers.append(entry.position)
    return wrong + _named("not from this log's writers", strangers) + _terms(calls, truncated=first > 0)


def _terms(calls: Sequence[tuple[int, int, int]], *, truncated: bool) -> list[str]:
    """What is wrong with the order of calls, each a position, a term and a number."""
    moved: list[int] = []
    ended: set[int] = set()
    for term, group in groupby(calls, key=lambda call: call[1]):
        run = list(group)
        begins = not run[0][2] or (truncated and not ended)  # its first entries may have been truncated
        if term in ended or not begins:
            moved.append(run[0][0])
        moved += [at for (_, _, a), (at, _, b) in pairwise(run) if b != a + 1]
        ended.add(term)
    return _named("doubled, missing before it, or out of order", moved)


def consumed(found: Sequence[Read], consumer: Sequence[Known], acknowledged: Sequence[Known] = ()) -> list[str]:
    """Everything that is wrong with a consumer's record: it has each entry of the log once, in order.

    It has those that were truncated since, too: they are what was acknowledged.
    """
    wrong = _not_dense([at for at, _ in consumer], "the consumer's record", 0)
    digests = dict(acknowledged) | {entry.position: digest(entry.payload).hex() for entry in found}
    received = dict(consumer)
    wrong += _named("never consumed", [at for at in digests if at not in received])
    wrong += _named("consumed with other bytes", [at for at, known in consumer if digests.get(at, known) != known])
    last = max(digests, default=-1)
    wrong += _named("consumed and not there", [at for at in received if at > last])
    return wrong


def streamed(found: Sequence[Read], rows: Sequence[Read]) -> list[str]:
    """Everything that is wrong with what a stream has written: it has each entry of the log once."""
    wrong = _named("written twice by the stream", [b.position for a, b in pairwise(rows) if a.position == b.position])
    there, written = dict(found), dict(rows)
    wrong += _named("never written by the stream", [at for at in there if at not in written])
    wrong += _named("written with other bytes", [at for at, payload in written.items() if there.get(at) != payload])
    return wrong


def _not_dense(positions: Sequence[int], what: str, first: int) -> list[str]:
    at = next((at for at, position in enumerate(positions, first) if position != at), None)
    return [] if at is None else [f"{what} has position {positions[at - first]} where {at} belongs"]


def _named(what: str, positions: Sequence[int]) -> list[str]:
    if not positions:
        return []
    some = ", ".join(map(str, positions[:_NAMED_MAX]))
    return [f"{what}: {some}" + f" ... ({len(positions)} in all)" * (len(positions) > _NAMED_MAX)]
