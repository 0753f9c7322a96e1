"""What the users of one log do in a run: open, append, roll, truncate, tail, and keep account of what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import warnings
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bkpy.client.client import log_parts
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    ConsumerLockedError,
    ForgottenProducerError,
    LogFencedError,
    MetadataUnavailableError,
    NoSuchLogError,
    SequenceError,
    TruncatedError,
    WouldBlock,
)
from bkpy.metadata.logs.pages import LogPages, PageMissingError, pages_path
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.resolve import children_if_there
from bkpy.protocol.log.log_list import PageRef
from bkpy.recovery.recoveries import Recoveries
from tests.hooks import cluster_of

from .coverage_marks import (
    CONSUMER_EXPIRED,
    LEASE_LOST,
    LEASE_TAKEN,
    LOG_DESCENDED,
    LOG_FENCED,
    LOG_FORGOTTEN,
    LOG_FULL,
    LOG_PAGE_DROPPED,
    LOG_PAGED,
    LOG_REPEATED,
    LOG_ROLLED,
    LOG_TRUNCATED,
)
from .log_account import Account, LeaseAccount, Tale

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
    from random import Random

    from bkpy.client.client import Client
    from bkpy.log.entries import LogEntry
    from bkpy.log.reader import LogReader
    from bkpy.log.writer import LogWriter
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList
    from bkpy.protocol.log.log_pages import Page, Row

    from .world import Host, World

FENCED: contextvars.ContextVar[list[int]] = contextvars.ContextVar("fenced")  # ledgers, by a call of open_log
PASSWORD = b"secret"
SLOW_AFTER = 300  # appends of a writer, which then makes pauses: a zombie may have to wait until the faults have ended


@contextlib.contextmanager
def noting_fences() -> Iterator[None]:
    """Note the ledgers that each call of `open_log` fences."""
    ended = Recoveries.ended

    def noted(recoveries: Recoveries, ledger_id: int, password: bytes) -> Coroutine[Any, Any, LedgerMetadata]:
        FENCED.get([]).append(ledger_id)
        return ended(recoveries, ledger_id, password)

    with patch.object(Recoveries, "ended", noted):
        yield


@contextlib.contextmanager
def noting_pages(marks: Counter[str]) -> Iterator[None]:
    """Mark each page of a list that is read."""
    read = LogPages.read

    def noted(pages: LogPages, name: str, uid: str, ref: PageRef) -> Coroutine[Any, Any, Page]:
        marks[LOG_DESCENDED] += 1
        return read(pages, name, uid, ref)

    with patch.object(LogPages, "read", noted):
        yield


async def read_whole(reader: LogReader) -> list[LogEntry]:
    """All that the log has, from where it begins when that was read: retention goes on, and may overtake the reader."""
    while True:
        first = reader.first_position
        try:
            found = [entry async for entry in reader.read()]
        except TruncatedError:
            await reader.refresh()
            if reader.first_position <= first:
                raise  # nothing was truncated meanwhile
        else:
            return [entry for entry in found if entry.position >= reader.first_position]


class LogUsers:
    """The users of the log `name`. `healed` is set when the faults have ended."""

    def __init__(self, world: World, name: str, sizes: Sequence[int], retention_s: float | None) -> None:
        self.world = world
        self.name = name
        self.sizes = sizes
        self.retention_s = retention_s
        self.expiry_s: float | None = None  # retention doesn't wait for consumers that commit nothing for so long
        self.account = Account(retention=retention_s is not None)
        self.leases = LeaseAccount()
        self.committed_at = 0.0  # by the tail
        self.gone_below = 0  # where the log began when the tail's consumer, which had expired, committed something
        self.idle_at: int | None = None  # where the consumer is that never commits anything
        self.healed = False
        rng = world.stream(f"producers of {name}")
        self.producers = rng.choice(((), (), ("shop",), ("shop", "mail")))
        self.begun: set[str] = set()  # producers that may have opened the log
        self.bounds: dict[str, Any] = {"log_producer_runs_max": rng.choice((1, 2, 4))}
        if rng.random() < 0.3:
            self.bounds["log_producers_max"] = 1
        if rng.random() < 0.2:
            self.bounds["log_producer_idle_s"] = rng.choice((0.3, 3.0))
        self.choosing = rng

    # --- writing ------------------------------------------------------------------------------------------------------

    async def open(self, client: Client, rng: Random) -> LogWriter:
        """Open the log, perhaps as a producer. A client that finds no room has fenced nobody, unless others used it."""
        producer = self.choosing.choice((None, *self.producers)) if self.producers else None
        return await self.open_as(client, rng, producer)

    async def open_as(self, client: Client, rng: Random, producer: str | None) -> LogWriter:
        fenced: list[int] = []
        FENCED.set(fenced)
        try:
            return await self.opened(client, rng, producer)
        except (ConfigError, ForgottenProducerError) as error:
            self.world.marks[LOG_FORGOTTEN if isinstance(error, ForgottenProducerError) else LOG_FULL] += 1
            if isinstance(error, ForgottenProducerError) and "log_producer_idle_s" not in self.bounds:
                self.account.broken.append(f"without a cause: {error}")
            if fenced and not await self.has_changed(client, fenced):
                self.account.broken.append(f"ledgers {fenced} were fenced by a client that found no room for its own")
            raise

    async def has_changed(self, client: Client, fenced: list[int]) -> bool:
        """Whether the log's writer has rolled, or another client opened it, since the ledgers were its last ones."""
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                log_list, _ = await log_parts(client).logs.read(self.name, fresh=True)
                return [segment.ledger_id for segment in log_list.open_segments][-1:] != fenced[-1:]
            await asyncio.sleep(0.1)

    async def opened(self, client: Client, rng: Random, producer: str | None) -> LogWriter:
        ensemble_size, write_quorum, ack_quorum = self.sizes
        new = producer is not None and producer not in self.begun
        if producer is not None:
            self.begun.add(producer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an ack quorum of 1 is what is wanted
            return await client.open_log(
                self.name,
                create=True,
                wait=rng.random() < 0.8,
                producer=producer,
                new_producer=new,
                password=PASSWORD,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                retention_s=self.retention_s,
                consumer_expiry_s=self.expiry_s,
                roll_entries=rng.choice((1, 3, 10, 100)),
                roll_s=rng.choice((0.1, 1.0, 1000.0)),
            )

    async def write_log(self, host: Host, log: LogWriter, tale: Tale, rng: Random, most: int = 1000) -> None:
        """Append until that fails, or end at some time; once an append has failed, none may succeed."""
        if log.producer is not None:
            tale = self.account.numbered(log.producer)
        already = len(tale.appended)
        ledger_id = log.ledger_id
        appends = min(most, rng.choice((3, 30, 1000)))
        truncating = rng.choice((0.02, 0.3))
        try:
            while len(tale.appended) < already + appends and not self.healed:
                await self.append_to(log, tale, rng)
                if log.ledger_id != ledger_id:
                    ledger_id = log.ledger_id
                    self.world.marks[LOG_ROLLED] += 1
                if rng.random() < truncating:
                    await self.truncate(log, rng)
                await asyncio.sleep(rng.random() * (0.05 if len(tale.appended) < already + SLOW_AFTER else 1.0))
            if rng.random() < 0.5:
                await log.close()
                host.record("log closed", f"at {log.next_position}")
        except BookKeeperError as error:
            host.record("log failed", type(error).__name__)
            self.world.marks[LOG_FENCED] += isinstance(error, LogFencedError)
            if not log.usable:
                await self.append_to_ended(log, tale)
        log.abandon()

    async def append_to_ended(self, log: LogWriter, tale: Tale) -> None:
        sequence = None
        if log.producer is not None:
            sequence = max(len(tale.appended), log.last_sequence + 1)
            while len(tale.appended) <= sequence:
                data = tale.next()
        else:
            data = tale.next()
        try:
            position = await log.append(data, sequence=sequence)
        except BookKeeperError as error:
            if sequence is None:
                tale.failed(data, error)
            return
        self.account.broken.append(f"a writer that had ended was told that {position} was acknowledged")

    async def append_to(self, log: LogWriter, tale: Tale, rng: Random) -> None:
        """One append, a batch, or several at once, of which some are not waited for."""
        if log.producer is not None:
            return await self.append_numbers(log, tale, rng)
        way = rng.randrange(3)
        datas = [tale.next(rng.choice((0, 10, 1000, 5000))) for _ in range(1 if way == 0 else rng.randrange(1, 10))]
        if way < 2:
            try:
                positions = [await log.append(datas[0])] if way == 0 else await log.append_batch(datas)
            except BookKeeperError as error:
                for data in datas:
                    tale.failed(data, error)
                raise
            for position, data in zip(positions, datas, strict=True):
                tale.told(data, position)
            return
        futures = []
        for data in datas:
            try:
                future = log.append_nowait(data)
            except WouldBlock:
                tale.never(data)
                continue
            except BookKeeperError as error:
                tale.failed(data, error)
                raise
            future.add_done_callback(lambda done, data=data: tale.settled(data, done))
            futures.append(future)
        if futures:
            await rng.choice(futures)

    async def append_numbers(self, log: LogWriter, tale: Tale, rng: Random) -> None:
        """The same with numbers, of which some are repeated, by calls of which some are cancelled.

        An application has its entries in a database, say: whoever appends the number n appends the same ones.
        """
        following = log.last_sequence + 1
        first = max(0, following - rng.choice((0, 0, 1, 3, 30)))
        numbers = range(first, max(following, first) + rng.randrange(1, 8))
        while len(tale.appended) < numbers.stop:
            tale.next(rng.choice((0, 10, 1000, 5000)))
        self.world.marks[LOG_REPEATED] += first < following
        way = rng.randrange(3)
        if way == 0:
            try:
                positions = await log.append_batch(tale.appended[first : numbers.stop], first_sequence=first)
            except SequenceError:
                if first >= following:
                    raise AssertionError(f"numbers from {first} on were refused, behind {following - 1}") from None
                return
            assert len(positions) == len(numbers)
            for number, position in zip(numbers, positions, strict=True):
                self.account.told(tale, number, position)
            return
        if way == 1:
            for number in numbers:
                await self.append_number(log, tale, number, following)
            return
        appending = [asyncio.ensure_future(self.append_number(log, tale, n, following)) for n in numbers]
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.01)
            rng.choice(appending).cancel()
        results = await asyncio.gather(*appending, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def append_number(self, log: LogWriter, tale: Tale, number: int, following: int) -> None:
        """A number below `following` may be too old to be known; no other one is refused."""
        try:
            position = await log.append(tale.appended[number], sequence=number)
        except SequenceError as error:
            if number >= following:
                raise AssertionError(f"number {number} was refused: {error}") from error
        else:
            self.account.told(tale, number, position)

    async def truncate(self, log: LogWriter, rng: Random) -> None:
        """Of what the tail has read, a part, or all that its consumer is done with."""
        before = rng.choice((rng.randrange(self.account.tailed + 1), self.account.committed))
        if before > log.first_position:
            with contextlib.suppress(ConfigError):  # the tail's consumer is behind the tail
                await log.truncate(before)
                self.world.marks[LOG_TRUNCATED] += 1

    # --- reading ------------------------------------------------------------------------------------------------------

    async def follow(self, host: Host, client: Client) -> None:
        """Read everything, with pauses in the midst of blocks, whose entries are truncated meanwhile, perhaps.

        A tail may fail and start again, but neither lose entries nor call itself closed.
        """
        rng = self.world.stream("dwelling")
        reader = None
        while True:
            try:
                reader = reader or await client.read_log(self.name, password=PASSWORD)
                lease = rng.random() < 0.5
                async with await reader.consumer("tail", create=True, lease=lease) as consumer:
                    self.account.registered(consumer.position)
                    await self.register_idle(reader)
                    async with aclosing(self.entries(reader, rng)) as entries:
                        async for entry in entries:
                            self.account.check_number(entry)
                            self.account.read(entry.position, entry.data, entry.time)
                            if entry.position % 5 == 0:
                                await consumer.commit(self.account.tailed)
                                if self.tail_expired():  # until now: what it has not read may be gone already
                                    await reader.refresh()
                                    self.gone_below = reader.first_position
                                self.committed_at = asyncio.get_running_loop().time()
                                self.account.committed = self.account.tailed
                                if rng.random() < 0.2 and not self.healed:
                                    await asyncio.sleep(rng.random() * 2)
            except ClientClosedError:
                raise
            except TruncatedError:
                if reader is None:
                    raise
                try:
                    await reader.refresh()
                except BookKeeperError as error:
                    host.record("tail failed", type(error).__name__)
                    await asyncio.sleep(0.1)
                    continue  # and fails in the same way again
                if reader.first_position > self.gone_below and not self.tail_expired():
                    raise  # nothing that a consumer has not read is deleted while it lives
                self.account.pass_over(reader.first_position)
            except BookKeeperError as error:
                if isinstance(error, NoSuchLogError):
                    reader = None  # a log may be created again whose first writer found too few bookies
                host.record("tail failed", type(error).__name__)
                await asyncio.sleep(0.1)

    def tail_expired(self) -> bool:
        """Whether retention need not wait for the tail's consumer any longer."""
        idle_s = asyncio.get_running_loop().time() - self.committed_at
        return self.expiry_s is not None and idle_s >= self.expiry_s

    async def register_idle(self, reader: LogReader) -> None:
        """A consumer that never commits anything: without an expiry the log would keep all for it."""
        if self.expiry_s is not None and self.idle_at is None:
            self.idle_at = (await reader.consumer("idle", create=True)).position

    async def compete(self, host: Host, client: Client, number: int) -> None:
        """Take the lease of a consumer that others want too, commit for a while, sleep perhaps, and again."""
        rng = self.world.stream(f"rival-{number}")
        while not self.healed:
            try:
                reader = await client.read_log(self.name, password=PASSWORD)
                async with await reader.consumer("leased", create=True, lease=True) as consumer:
                    self.world.marks[LEASE_TAKEN] += 1
                    self.leases.taken(consumer, consumer.position)
                    for _ in range(rng.choice((1, 5, 20))):
                        await reader.refresh()
                        wanted = rng.randrange(max(reader.first_position, 1) - 1, reader.next_position + 1)
                        if rng.random() < 0.1:  # as after a pause of the process
                            session = cluster_of(client).store
                            assert isinstance(session, MemorySession)
                            session.expire()
                            await asyncio.sleep(rng.choice((0.0, 1.0)))
                        self.leases.begins(consumer, wanted)
                        await consumer.commit(wanted)
                        self.leases.ended(consumer, wanted)
                        await asyncio.sleep(rng.random() ** 4 * 5)
            except ClientClosedError:
                raise
            except BookKeeperError as error:
                self.world.marks[LEASE_LOST] += isinstance(error, ConsumerLockedError) and not error.retriable
                host.record("no commit", type(error).__name__)
                await asyncio.sleep(rng.random())

    async def entries(self, reader: LogReader, rng: Random) -> AsyncGenerator[LogEntry, None]:
        """What the tail has not read, by an iterator or by polls, some of which are cancelled."""
        if rng.random() < 0.5:
            async with aclosing(reader.tail(self.account.tailed)) as tail:
                async for entry in tail:
                    yield entry
        reader.seek(self.account.tailed)
        while True:
            call = asyncio.create_task(
                reader.poll(max_entries=rng.choice((1, 3, 100)), timeout=rng.choice((0, 0.5, None)))
            )
            await asyncio.wait([call], timeout=rng.choice((0, 0.01, 5.0)))
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                for entry in await call:
                    yield entry

    async def settle(self, client: Client) -> None:
        """Write on when all is well, close, and look at everything."""
        rng = self.world.stream("settle")
        log = await self.open_at_last(client, rng)
        tale = self.account.begin("last")
        while len(tale.acknowledged) < 20:
            await self.append_to(log, tale, rng)
        await log.flush()
        await log.close()
        for producer in self.producers:
            log = await self.settle_producer(client, rng, producer) or log
        log_list, _ = await log_parts(client).logs.read(self.name, fresh=True)
        assert not log_list.open_segments
        await self.check_pages(client, log_list)
        reader = await client.read_log(self.name, password=PASSWORD)
        found = {}
        for entry in await read_whole(reader):
            self.account.check_number(entry)
            found[entry.position] = entry.data, entry.time
        position = reader.first_position
        for there in found:
            assert there == log_list.behind(position), f"position {position} is missing"
            position = there + 1
        assert position == log.next_position
        if self.account.tailed < reader.first_position and self.tail_expired():  # which it will find out
            self.account.lose(range(self.account.tailed, reader.first_position))
        self.account.check(found, reader.first_position)
        await self.check_times(reader, {position: time for position, (_, time) in found.items()})
        if self.idle_at is not None and self.idle_at < reader.first_position:
            self.world.marks[CONSUMER_EXPIRED] += 1
        self.account.end = log.next_position
        self.world.record("oracle", "satisfied")

    async def check_times(self, reader: LogReader, times: Mapping[int, float]) -> None:
        """The position of a time is that of the first entry that isn't older."""
        rng = self.world.stream("times")
        for _ in range(min(3, len(times))):
            time = rng.choice([*times.values()]) + rng.choice((-0.001, 0.0, 0.001))
            expected = min((position for position, of in times.items() if of >= time), default=reader.next_position)
            position = await reader.position_at(time)
            gone = expected < reader.first_position  # truncated meanwhile
            assert gone or position == expected, f"of time {time}: position {position} in place of {expected}"

    async def check_pages(self, client: Client, log_list: LogList) -> None:
        """No page is forgotten, and none that holds what was not truncated is gone."""
        parts = log_parts(client).logs
        named: set[int] = set()

        async def note(rows: Sequence[Row]) -> None:
            for row in rows:
                if isinstance(row, PageRef):
                    named.add(row.number)
                    if row.end_position > log_list.pending_end:
                        await note((await parts.pages.read(self.name, log_list.uid, row)).rows)
                    else:  # it may be deleted at any time
                        with contextlib.suppress(PageMissingError):
                            await note((await parts.pages.read(self.name, log_list.uid, row)).rows)

        await note(log_list.pages)
        there = await children_if_there(parts.store, pages_path(parts.root, self.name, log_list.uid))
        forgotten = {int(number) for number in there if int(number) < log_list.next_page} - named
        assert not forgotten, f"nothing refers to pages {sorted(forgotten)} of the list of {self.name}"
        self.world.marks[LOG_PAGED] += log_list.next_page
        self.world.marks[LOG_PAGE_DROPPED] += log_list.next_page - len(there)

    async def settle_producer(self, client: Client, rng: Random, producer: str) -> LogWriter | None:
        """Append what the producer has not appended yet, and repeat what it has; None if it can't open the log."""
        tale = self.account.numbered(producer)
        try:
            log = await self.open_at_last(client, rng, producer)
        except (ConfigError, ForgottenProducerError):
            return None
        tale.next()
        for number in range(max(0, log.last_sequence - 3), len(tale.appended)):
            await self.append_number(log, tale, number, log.last_sequence + 1)
        assert log.last_sequence == len(tale.appended) - 1
        await log.close()
        tale.whole = True
        return log

    async def open_at_last(self, client: Client, rng: Random, producer: str | None = None) -> LogWriter:
        while True:
            try:
                return await self.open_as(client, rng, producer)
            except (ConfigError, ForgottenProducerError):
                if producer is not None:
                    raise
                await asyncio.sleep(0.3)
            except BookKeeperError as error:
                self.world.record("event", f"not opened yet: {type(error).__name__}: {error}")
                await asyncio.sleep(0.3)
