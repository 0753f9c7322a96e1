"""What a run of chaos demands of a log: acknowledged entries are there, unaltered, once, and in order.

A writer records each acknowledgement in a file that it only appends to. Every payload carries the log's name, its
number in the order of the calls, and a digest. An append whose outcome is unknown is never repeated, so a number that
comes twice, or after a higher one, is an entry that the log doubled or moved.
"""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DIGEST_BYTES = 8
_NUMBER = struct.Struct(">Q")
_NAMED_MAX = 10


class Read(NamedTuple):
    position: int
    payload: bytes


def make_payload(log: str, number: int, filler: bytes) -> bytes:
    body = _NUMBER.pack(number) + filler
    return body + digest(log.encode() + body)


def number_of(log: str, payload: bytes) -> int:
    """The number of the append; `ValueError` for bytes that no writer of this log appended."""
    body, end = payload[:-_DIGEST_BYTES], payload[-_DIGEST_BYTES:]
    if len(body) < _NUMBER.size or digest(log.encode() + body) != end:
        raise ValueError(f"{len(payload)} bytes that no writer of {log} appended")
    return int(_NUMBER.unpack_from(body)[0])


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Record:
    """A file with a line for each entry: its position and its digest. What is written outlives a killed process."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self.path = path
        self._file = path.open("ab", buffering=0)

    def add(self, entries: Sequence[Read]) -> None:
        lines = (json.dumps([entry.position, digest(entry.payload).hex()]) for entry in entries)
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self.count += len(entries)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def load(path: Path) -> list[tuple[int, str]]:
        """All whole lines. A process that died in the midst of the last one has acknowledged nothing by it."""
        lines = path.read_bytes().split(b"\n")[:-1]
        return [(int(position), str(known)) for position, known in map(json.loads, lines)]


def account(log: str, acknowledged: Sequence[tuple[int, str]], found: Sequence[Read]) -> list[str]:
    """Everything that is wrong with a log that was read from its first entry to its last; nothing if it is right."""
    wrong = _not_dense([entry.position for entry in found], "the log")
    digests = {entry.position: digest(entry.payload).hex() for entry in found}
    wrong += _named("acknowledged and lost", [at for at, _ in acknowledged if at not in digests])
    wrong += _named(
        "acknowledged with other bytes", [at for at, known in acknowledged if digests.get(at, known) != known]
    )
    wrong += _named("acknowledged twice", [b for (a, _), (b, _) in pairwise(sorted(acknowledged)) if a == b])
    numbers: list[tuple[int, int]] = []
    strangers: list[int] = []
    for entry in found:
        try:
            numbers.append((entry.position, number_of(log, entry.payload)))
        except ValueError:
            strangers.append(entry.position)
    wrong += _named("not from this log's writers", strangers)
    wrong += _named("doubled or out of order", [at for (_, a), (at, b) in pairwise(numbers) if b <= a])
    return wrong


def consumed(found: Sequence[Read], consumer: Sequence[tuple[int, str]]) -> list[str]:
    """Everything that is wrong with a consumer's record: it has each entry of the log once, in order."""
    wrong = _not_dense([at for at, _ in consumer], "the consumer's record")
    digests = {entry.position: digest(entry.payload).hex() for entry in found}
    received = dict(consumer)
    wrong += _named("never consumed", [at for at in digests if at not in received])
    wrong += _named("consumed with other bytes", [at for at, known in consumer if digests.get(at) != known])
    return wrong


def _not_dense(positions: Sequence[int], what: str) -> list[str]:
    at = next((at for at, position in enumerate(positions) if position != at), None)
    return [] if at is None else [f"{what} has position {positions[at]} where {at} belongs"]


def _named(what: str, positions: Sequence[int]) -> list[str]:
    if not positions:
        return []
    some = ", ".join(map(str, positions[:_NAMED_MAX]))
    return [f"{what}: {some}" + f" ... ({len(positions)} in all)" * (len(positions) > _NAMED_MAX)]
