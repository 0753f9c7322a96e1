"""From the metadata of closed ledgers to ranges of entries, each within one fragment and of a bounded size.

Invariants: the ranges of a plan are disjoint and cover exactly what was asked for; no ledger that may still grow is
ever part of one.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from bkpy.client.arguments import format_ledger_ids
from bkpy.client.connecting import connect_tuned
from bkpy.errors import ConfigError, NoSuchEntryError, NoSuchLedgerError, UnauthorizedError
from bkpy.metadata.logs.maintenance import LOG_NAME
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.wire.records import HEADER_BYTES, MAC_BYTES, PLAIN
from bkpy.spark.id_runs import NOTHING, Runs
from bkpy.spark.options import CLOSED, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import bkpy

CUTS_MAX: Final = 1_000_000  # some 200 MB of the driver's memory


@dataclass(frozen=True)
class Origin:
    """Where in a log a ledger is: its entry 0 has `position`, and no entry a time before `begun_ms`.

    `stamp` is the format of its entries' stamps.
    """

    log: str
    position: int
    begun_ms: int
    stamp: int = PLAIN


@dataclass(frozen=True)
class EntryRange:
    """Entries first..last of a ledger, about `bytes` long with what is stored around them."""

    ledger_id: int
    first: int
    last: int
    bytes: int
    origin: Origin | None = None

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def positions(self) -> tuple[int, int]:
        """Where in its log the range begins, and where it has ended."""
        assert self.origin is not None
        return self.origin.position + self.first, self.origin.position + self.last + 1


@dataclass(frozen=True)
class Selection:
    """The metadata of the ledgers to read, by id, and the ids of those with another password, left out on request."""

    ledgers: list[LedgerMetadata]
    unauthorized: list[int]


def load_ledgers(options: SourceOptions, *, done: Callable[[str], Runs] | None = None, **settings: Any) -> Selection:
    """The ledgers to read. Blocks, on an event loop of its own. `settings` are more of those of its client.

    `done` tells for the cluster's instance id which ledgers need not even be looked at.

    Raises `NoSuchLedgerError`, `ConfigError` for a ledger that isn't closed or is a log's, `UnauthorizedError` that
    names all those with another password, `NoSuchClusterError` and `MetadataUnavailableError`. With "closed", ledgers
    that aren't are left out, and so are those of logs; without `fail_on_data_loss`, so are named ones that don't exist;
    with `skip_unauthorized`, those with another password.
    """
    return asyncio.run(_load(options, done, options.client_settings() | settings))


async def _load(options: SourceOptions, done: Callable[[str], Runs] | None, settings: Mapping[str, Any]) -> Selection:
    async with connect_tuned(options.metadata_uri, **settings) as client:
        without = done(client.instance_id) if done is not None else NOTHING
        if options.ledgers is not None:
            ids = list(options.ledgers)
        else:
            ids = sorted([ledger_id async for ledger_id in client.list_ledgers()])
        ids = [ledger_id for ledger_id in ids if ledger_id not in without]
        found: list[LedgerMetadata] = []
        for i in range(0, len(ids), options.metadata_requests):
            found += await _read(client, ids[i : i + options.metadata_requests], options)
    return select(found, options)


def select(found: Sequence[LedgerMetadata], options: SourceOptions) -> Selection:
    """The ledgers with the given password. The others are one `UnauthorizedError`, unless the options skip them."""
    password = options.password()
    refused: dict[int, UnauthorizedError] = {}
    for metadata in found:
        try:
            metadata.authorised(password)
        except UnauthorizedError as e:
            refused[metadata.ledger_id] = e
    if refused and not options.skip_unauthorized:
        if len(refused) == 1:
            raise next(iter(refused.values()))
        why = "another password than the one given" if password else "a password, and none was given"
        raise UnauthorizedError(
            f"{len(refused)} of the {len(found)} closed ledgers have {why} [ledgers {format_ledger_ids(refused)}]"
        )
    return Selection([metadata for metadata in found if metadata.ledger_id not in refused], list(refused))


async def _read(client: bkpy.Client, ids: Sequence[int], options: SourceOptions) -> list[LedgerMetadata]:
    """The metadata of closed ledgers. One that isn't closed, or doesn't exist, is an error if the options name it.

    So is one of a log, since the log alone tells what of it counts: it may never have been committed.
    """
    named = options.ledgers is not None
    results = await asyncio.gather(*map(client.ledger_metadata, ids), return_exceptions=True)
    closed = []
    for result in results:
        if isinstance(result, NoSuchLedgerError) and not (named and options.fail_on_data_loss):
            continue  # deleted, perhaps since it was listed
        if isinstance(result, BaseException):
            raise result
        log = result.custom_metadata.get(LOG_NAME)
        if result.state is LedgerState.CLOSED and log is None:
            closed.append(result)
        elif named and log is not None:
            raise ConfigError(
                f"the ledger belongs to the log {log.decode(errors='replace')}: read that with option log",
                ledger_id=result.ledger_id,
            )
        elif named:
            raise ConfigError(
                f'the ledger is {result.state.value}; only closed ones can be read ("{CLOSED}" leaves others out)',
                ledger_id=result.ledger_id,
            )
    return closed


def plan(
    ledgers: Sequence[LedgerMetadata],
    options: SourceOptions,
    narrow: Callable[[EntryRange], EntryRange | None] | None = None,
) -> list[EntryRange]:
    """The ranges to read, by ledger and entry: each at most `partition_bytes_max` by the ledger's average entry.

    There are at least `partitions_min` of them as far as there are entries. `narrow` says what of a range is wanted.
    Raises `ConfigError` for offsets of a ledger that isn't read, and for so small ranges that their number would fill
    the memory; `NoSuchEntryError` for offsets past a ledger's end.
    """
    ids = {metadata.ledger_id for metadata in ledgers}
    if not options.fail_on_data_loss:
        ids.update(options.ledgers or options.starts.keys() | options.ends.keys())  # deleted ones, too
    for name, offsets in (("startingOffsets", options.starts), ("endingOffsets", options.ends)):
        if others := sorted(set(offsets) - ids):
            raise ConfigError(f"option {name} names a ledger that isn't read", ledger_id=others[0])
    wholes = [whole for metadata in ledgers for whole in _fragments(metadata, options)]
    return cut(wholes, options, narrow)


def cut(
    wholes: Sequence[EntryRange],
    options: SourceOptions,
    narrow: Callable[[EntryRange], EntryRange | None] | None = None,
) -> list[EntryRange]:
    """What is wanted of these, in ranges of bounded size: see `plan`."""
    if narrow is not None:
        wholes = [narrowed for narrowed in map(narrow, wholes) if narrowed is not None]
    pieces = _pieces(wholes, options.partition_bytes_max, options.partitions_min)
    if (count := sum(pieces)) > max(CUTS_MAX, len(wholes)):
        raise ConfigError(
            f"option maxBytesPerPartition = {options.partition_bytes_max} makes {count:,} tasks, more than the limit "
            f"of {CUTS_MAX:,}: give more bytes, or read less at once"
        )
    return [part for whole, count in zip(wholes, pieces, strict=True) for part in _cut(whole, count)]


def _fragments(metadata: LedgerMetadata, options: SourceOptions) -> Iterator[EntryRange]:
    """The ranges to read of each fragment of a ledger."""
    count, ledger_id = metadata.last_entry + 1, metadata.ledger_id
    start, end = options.starts.get(ledger_id, 0), options.ends.get(ledger_id, count)
    for offset in (start, end):
        if offset > count:
            raise NoSuchEntryError(f"the offset {offset} is past the ledger's {count} entries", ledger_id=ledger_id)
    if count == 0:
        return
    overhead = HEADER_BYTES + (MAC_BYTES if metadata.digest == "hmac-sha256" else 0)
    entry_bytes = metadata.length / count + overhead
    firsts = [*(fragment.first_entry for fragment in metadata.fragments), count]
    for fragment_first, fragment_end in pairwise(firsts):
        first, last = max(start, fragment_first), min(end, fragment_end) - 1
        if first <= last:
            yield EntryRange(ledger_id, first, last, round((last - first + 1) * entry_bytes))


def _pieces(wholes: Sequence[EntryRange], bytes_max: int, count_min: int) -> list[int]:
    """Into how many pieces each is cut: as few as the size allows, then more of whatever has the largest ones."""
    pieces = [min(whole.entries, -(-whole.bytes // bytes_max)) for whole in wholes]
    largest = [
        (-whole.bytes / n, i) for i, (whole, n) in enumerate(zip(wholes, pieces, strict=True)) if n < whole.entries
    ]
    heapq.heapify(largest)
    missing = count_min - sum(pieces)
    while missing > 0 and largest:
        _, i = heapq.heappop(largest)
        pieces[i] += 1
        missing -= 1
        if pieces[i] < wholes[i].entries:
            heapq.heappush(largest, (-wholes[i].bytes / pieces[i], i))
    return pieces


def _cut(whole: EntryRange, count: int) -> Iterator[EntryRange]:
    """`count` ranges of as equal a number of entries as can be."""
    for low, high in pairwise(whole.first + whole.entries * i // count for i in range(count + 1)):
        yield replace(whole, first=low, last=high - 1, bytes=whole.bytes * (high - low) // whole.entries)
