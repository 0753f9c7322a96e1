"""A sink's work in the cluster: writing the ledger of a task attempt, committing a batch, deleting unused ledgers.

    attempt    a ledger with the log's name and uid in its custom metadata, closed; no list names it
    commit     recover the log's open ledgers, which fences its writer -> one write of the list that names all ledgers
               of the batch, behind everything, and the batch's number; in a transaction with checks of these ledgers
    discard    delete a ledger that no list names, in a transaction with a check of the list

Invariants: the list names the ledgers of a batch exactly if it has had its number; a ledger that was deleted is never
named; one that may yet be named is never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from typing import TYPE_CHECKING, Final, assert_never

import bkpy
from bkpy.client.client import log_parts
from bkpy.config.base import MIB
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    FrameTooLargeError,
    MetadataConflictError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.log.client import create_segment
from bkpy.log.opening import closed_end
from bkpy.metadata.logs.maintenance import LOG_UID, LogMaintenance
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.log.log_opening import longest, longest_opened, settled
from bkpy.protocol.log.log_sinks import BatchPart, BatchStanding, standing, with_batch
from bkpy.protocol.wire.records import STAMP_BYTES, ledger_key
from bkpy.runtime.background import BackgroundLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.store.store import Check
    from bkpy.protocol.log.log_list import LogList
    from bkpy.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

_STAMP: Final = struct.Struct("<q")
_APPEND_ENTRIES: Final = 1000  # appended in one call, as long as they are small
_APPEND_BYTES: Final = MIB


# --- a task attempt --------------------------------------------------------------------------------------------------


def write_attempt(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> BatchPart | None:
    """A CLOSED ledger with the payloads of these rows, of one column; None for no rows. Blocks.

    Raises `ConfigError` for a row without a payload, and whatever `LedgerWriter` raises; the ledger is deleted then, or
    left to the auditor, which deletes ledgers that no list names.
    """
    # Rows may be long in coming: on a loop of its own the session lives meanwhile.
    loop = BackgroundLoop(f"write to log {options.log}")
    attempt = _AttemptWriter(options)
    try:
        before: Future[None] | None = None
        for batch in rows:
            payloads = batch.column(0).to_pylist()
            if before is not None:
                before.result()
            before = loop.submit(attempt.append(payloads))
        if before is not None:
            before.result()
        return loop.call(attempt.finish())
    except BaseException:
        loop.call(attempt.give_up())
        raise
    finally:
        loop.close()


class _AttemptWriter:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._writer: LedgerWriter | None = None
        self._stamp = b""

    async def append(self, payloads: Sequence[bytes | None]) -> None:
        if not payloads:
            return
        writer = self._writer or await self._begin()
        stamped = [self._stamp + payload for payload in payloads if payload is not None]
        if len(stamped) < len(payloads):
            raise ConfigError("a row has no payload: an entry may be empty, but not null")
        try:
            # They are sent in the order of these calls.
            await asyncio.gather(*(writer.append_batch(some) for some in _parts(stamped)))
        except FrameTooLargeError as error:
            raise FrameTooLargeError(
                f"a row's payload of {max(map(len, stamped)) - STAMP_BYTES} bytes is too large for a log: "
                f"{error.message}, {STAMP_BYTES} of which are the log's own"
            ) from error

    async def _begin(self) -> LedgerWriter:
        options = self._options
        self._client = await bkpy.connect(options.metadata_uri, **options.client_settings())
        log_list, _ = await _read_list(self._client, options)
        parts = log_parts(self._client)
        self._stamp = _STAMP.pack(parts.logs.now_ms())
        self._writer = await create_segment(parts, options.log, log_list, options.password())
        return self._writer

    async def finish(self) -> BatchPart | None:
        if self._client is None or self._writer is None:
            return None
        await self._writer.close()
        ledger_id = self._writer.ledger_id
        metadata = await self._client.ledger_metadata(ledger_id)
        await self._client.close()
        return BatchPart(ledger_id, metadata.last_entry + 1, metadata.length, _STAMP.unpack(self._stamp)[0])

    async def give_up(self) -> None:
        if self._client is None:
            return
        if self._writer is not None:
            self._writer.abandon()
            with contextlib.suppress(BookKeeperError):  # the error that led here is the one to raise
                await self._client.delete_ledger(self._writer.ledger_id)
        await self._client.close()


def _parts(payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Runs of them that are appended in one call."""
    begin, size = 0, 0
    for i, payload in enumerate(payloads):
        if i > begin and (i - begin >= _APPEND_ENTRIES or size + len(payload) > _APPEND_BYTES):
            yield payloads[begin:i]
            begin, size = i, 0
        size += len(payload)
    yield payloads[begin:]


# --- the driver ------------------------------------------------------------------------------------------------------


async def check_log(options: SinkOptions) -> None:
    """Raises `NoSuchLogError`, and `UnauthorizedError` for another password, before a task has written anything."""
    async with bkpy.connect(options.metadata_uri, **options.client_settings()) as client:
        await _read_list(client, options)


async def commit_batch(options: SinkOptions, batch: int, parts: Sequence[BatchPart]) -> None:
    """Put the batch into the log, unless it is there.

    Fences the log's writer, if it has one. Raises `ConfigError` if a later batch of this writer id was committed;
    `LedgerRecoveryError` and others that opening a log raises; `MetadataUnavailableError`, perhaps with
    `outcome_unknown`: then the batch is in the log or not, and a repetition finds out.
    """
    async with bkpy.connect(options.metadata_uri, **options.client_settings()) as client:
        for _ in range(log_parts(client).logs.settings.log_conflicts_max):
            log_list, version = await _read_list(client, options)
            match standing(log_list, options.writer_id, batch):
                case BatchStanding.OLDER:
                    last = log_list.producers.batches[options.writer_id]
                    raise ConfigError(
                        f"writerId {options.writer_id} has committed batch {last} to log "
                        f"{options.log}, so batch {batch} is a repeated one or another query's: a query with a new "
                        "checkpoint needs a writerId of its own"
                    )
                case BatchStanding.COMMITTED:
                    log.warning("batch %d of %s was committed before", batch, options.writer_id)
                    await _discard(client, parts)
                    return
                case BatchStanding.NEW:
                    if not parts or await _committed(client, options, batch, parts, log_list, version):
                        return
    raise MetadataConflictError(f"the list of log {options.log} changes all the time")


async def _committed(
    client: Client, options: SinkOptions, batch: int, parts: Sequence[BatchPart], log_list: LogList, version: int
) -> bool:
    """False if the list has changed meanwhile."""
    inner = log_parts(client)
    logs, password = inner.logs, options.password()
    _check_room(client, options, batch, parts, log_list)
    try:
        ends = {segment.ledger_id: await closed_end(inner, password, segment) for segment in log_list.open_segments}
    except NoSuchLedgerError:
        if (await logs.read(options.log, fresh=True))[1] != version:
            return False  # another client has removed it from the list
        raise
    now_ms = max(logs.now_ms(), log_list.last_ms)  # also of what is dropped
    wanted = with_batch(
        settled(log_list, ends, logs.settings.log_producer_runs_max),
        options.writer_id,
        batch,
        parts,
        now_ms,
        logs.settings.log_producers_max,
    )
    checks = [await _check_of(client, part, log_list.uid) for part in parts]
    outcome = await logs.write(options.log, wanted, version, *checks)
    match outcome:
        case Done():
            return True
        case Changed() | Superseded() | Missing():
            return False
        case NotDone() | Unknown():
            raise to_error(outcome)
        case _:
            assert_never(outcome)


def _check_room(
    client: Client, options: SinkOptions, batch: int, parts: Sequence[BatchPart], log_list: LogList
) -> None:
    """Raise `ConfigError`, before anybody is fenced, if the list has no room for the batch and the next opener.

    Also if the batch has too many ledgers for one transaction.
    """
    logs = log_parts(client).logs
    checks = [logs.ledger_check(part.ledger_id, 0) for part in parts]
    logs.check_checks(options.log, checks, "write batches of fewer tasks, as after coalesce()")
    now_ms = logs.now_ms()
    committed = with_batch(longest(log_list), options.writer_id, batch, parts, now_ms, logs.settings.log_producers_max)
    logs.check_fits(options.log, longest_opened(committed, now_ms))


async def _check_of(client: Client, part: BatchPart, uid: str) -> Check:
    """For the transaction that names the ledger: that nobody deletes it before. Raises `NoSuchLedgerError`."""
    parts = log_parts(client)
    metadata, version = await parts.catalog.read(part.ledger_id, fresh=True)
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry + 1 != part.entries:
        raise MetadataConflictError(
            f"the ledger is {metadata.state.value} with last entry {metadata.last_entry}, and was written with "
            f"{part.entries} entries",
            ledger_id=part.ledger_id,
        )
    if metadata.custom_metadata.get(LOG_UID) != uid.encode():
        raise MetadataConflictError("the log was deleted and created again since", ledger_id=part.ledger_id)
    return parts.logs.ledger_check(part.ledger_id, version)


async def discard(options: SinkOptions, parts: Sequence[BatchPart]) -> None:
    """Delete the ledgers of a failed batch, except ledgers that the list names: its outcome may have been unknown.

    What can't be deleted now is left to the auditor, which deletes ledgers that no list names.
    """
    if not parts:
        return
    try:
        async with bkpy.connect(options.metadata_uri, **options.client_settings()) as client:
            await _discard(client, parts)
    except BookKeeperError as error:  # the error of the batch is the one to raise
        log.warning("%d ledgers made for log %s and not used may still be there: %s", len(parts), options.log, error)


async def _discard(client: Client, parts: Sequence[BatchPart]) -> None:
    cluster = log_parts(client)
    maintenance = LogMaintenance(cluster.logs, cluster.catalog)
    for part in parts:
        with contextlib.suppress(NoSuchLedgerError):
            await maintenance.sweep(await client.ledger_metadata(part.ledger_id), grace_s=0.0)


async def _read_list(client: Client, options: SinkOptions) -> tuple[LogList, int]:
    log_list, version = await log_parts(client).logs.read(options.log, fresh=True)
    if log_list.ledger_key != ledger_key(options.password()):
        raise UnauthorizedError(f"the password is not that of log {options.log}")
    return log_list, version
