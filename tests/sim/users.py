"""What the users of ledgers do in a run: append, close and recover, and keep account of what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    DuplicateEntryError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    WouldBlock,
)
from tests.faults.oracle import make_payload

from .coverage_marks import FORCED, OWN_ID
from .stories import PASSWORD, Stories, Story
from .world import Host, HostDied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

    from .cluster import Cluster

PATIENCE_S = 200.0  # within which everything ends once the faults have

TRANSIENT = (LedgerRecoveryError, BookieUnavailableError, MetadataConflictError, MetadataUnavailableError)


class Users:
    """The users of one cluster. The writers are on the cluster's host for clients."""

    def __init__(self, cluster: Cluster, stories: Stories | None = None) -> None:
        self.cluster = cluster
        self.world = world = cluster.world
        self.plan = world.stream("plan")
        self.writing = cluster.client_host
        self.stories = stories or Stories(world, cluster.bookies)
        self.writers: dict[int, LedgerWriter] = {}

    def name_of(self, one: LedgerWriter | Story) -> str:
        """What the trace calls the ledger."""
        return self.cluster.tree.name_of(one.ledger_id)

    async def in_time(self, future: asyncio.Future[Any], who: str) -> None:
        done, _ = await asyncio.wait([future], timeout=PATIENCE_S)
        assert done, f"{who} does not end"
        try:
            future.result()
        except HostDied:
            self.world.record("event", f"{who} died")

    @contextlib.asynccontextmanager
    async def client(self, host: Host, **settings: Any) -> AsyncIterator[Client]:
        """A client, made as soon as the metadata store can be reached."""
        while True:
            try:
                client = await self.cluster.connect(host, **settings)
                break
            except MetadataUnavailableError:
                await asyncio.sleep(0.1)
        try:
            yield client
        finally:
            await client.close()

    async def check(self, host: Host) -> None:
        async with self.cluster.client(host, calm=True) as client:
            await self.stories.check(client, self.cluster.bookies)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def begin(self, client: Client, sizes: tuple[int, int, int], **more: Any) -> LedgerWriter:
        """Create a ledger; its story begins."""
        ensemble_size, write_quorum, ack_quorum = sizes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an ack quorum of 1 is what is wanted
            writer = await client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=PASSWORD,
                **more,
            )
        self.writers[writer.ledger_id] = writer
        self.stories.begin(client, writer)
        return writer

    async def append_in_vain(self, story: Story, writer: LedgerWriter, rng: Random) -> None:
        """No append may succeed once one has failed, or the writer was closed."""
        try:
            entry_id = await self.append(story, writer, rng)
        except BookKeeperError:
            return
        story.violated("I8", f"a writer that had ended was told that entry {entry_id} was acknowledged")

    async def append(self, story: Story, writer: LedgerWriter, rng: Random) -> int:
        number = story.promises.next_number()
        payload = make_payload(writer.ledger_id, number, rng, rng.choice((0, 10, 1000, 5000)))
        try:
            entry_id = await writer.append(payload)
        except BookKeeperError as error:
            story.promises.failed(number, error)
            raise
        except asyncio.CancelledError:
            story.promises.cancelled.add(number)
            raise
        self.acknowledged(story, writer, entry_id, payload)
        return entry_id

    async def append_some(self, story: Story, writer: LedgerWriter, rng: Random, most: int = 20) -> None:
        """One append, a batch, or several at once, of which some are not waited for."""
        way = rng.randrange(3)
        if way == 0:
            await self.append(story, writer, rng)
            return
        numbers = [story.promises.next_number() for _ in range(rng.randrange(1, most))]
        payloads = [make_payload(writer.ledger_id, n, rng, rng.choice((0, 10, 1000, 5000))) for n in numbers]
        if way == 1:
            try:
                ids = await writer.append_batch(payloads)
            except BookKeeperError as error:
                for number in numbers:
                    story.promises.failed(number, error)
                raise
            except asyncio.CancelledError:
                story.promises.cancelled.update(numbers)
                raise
            for entry_id, payload in zip(ids, payloads, strict=True):
                self.acknowledged(story, writer, entry_id, payload)
            return
        futures = []
        for number, payload in zip(numbers, payloads, strict=True):
            try:
                future = writer.append_nowait(payload)
            except WouldBlock as error:
                story.promises.failed(number, error)
                continue  # what is smaller may still fit
            except BookKeeperError as error:
                story.promises.failed(number, error)
                raise
            future.add_done_callback(lambda done, n=number, p=payload: self.settled(story, writer, n, p, done))
            futures.append(future)
        if futures:
            await rng.choice(futures)

    def settled(
        self, story: Story, writer: LedgerWriter, number: int, payload: bytes, future: asyncio.Future[int]
    ) -> None:
        if future.cancelled():
            story.promises.cancelled.add(number)
            return
        error = future.exception()
        if error is None:
            self.acknowledged(story, writer, future.result(), payload)
        elif isinstance(error, BookKeeperError):
            story.promises.failed(number, error)
        else:
            raise error

    async def append_by_ids(self, story: Story, writer: LedgerWriter, rng: Random, most: int) -> None:
        """Entries with ids of the caller's choice, in any order, and those again of which a call was cancelled."""
        for _ in range(rng.randrange(1, most + 1)):
            number = story.promises.next_number()
            story.wanted[number] = make_payload(writer.ledger_id, number, rng, rng.choice((0, 10, 1000, 5000)))
        numbers = rng.sample([*story.wanted], len(story.wanted))
        results = await asyncio.gather(*(self.append_at(story, writer, n) for n in numbers), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def append_at(self, story: Story, writer: LedgerWriter, number: int) -> None:
        payload = story.wanted[number]
        try:
            entry_id = await writer.append(payload, entry_id=number)
        except DuplicateEntryError:
            assert number in story.promises.cancelled, f"entry {number} was taken, and nobody had appended it"
        except BookKeeperError as error:
            if number not in story.promises.cancelled:
                story.promises.failed(number, error)
            raise
        except asyncio.CancelledError:
            story.promises.cancelled.add(number)
            raise
        else:
            assert entry_id == number, f"entry {number} became {entry_id}"
            self.acknowledged(story, writer, entry_id, payload)
            self.world.marks[OWN_ID] += 1
        del story.wanted[number]

    def acknowledged(self, story: Story, writer: LedgerWriter, entry_id: int, payload: bytes) -> None:
        if writer.metadata.deferred_sync:  # a promise once it is forced
            story.unforced[entry_id] = payload
            self.world.record("writer", "not synced", f"{self.name_of(writer)} {entry_id}")
            return
        story.acknowledged(writer, entry_id, payload)
        self.world.record("writer", "acknowledged", f"{self.name_of(writer)} {entry_id}")

    async def force(self, story: Story, writer: LedgerWriter) -> None:
        """Make durable what is acknowledged; a call that fails may be made again."""
        before = max(story.unforced, default=-1)
        try:
            last = await writer.force()
        except BookKeeperError as error:
            self.world.record("writer", "force failed", f"{self.name_of(writer)} {type(error).__name__}")
            if not writer.usable:
                raise
        else:
            if last < before:
                story.violated("I2", f"entry {before} was acknowledged, and entry {last} the last one that was forced")
            self.forced(story, writer)
            self.world.marks[FORCED] += 1

    def forced(self, story: Story, writer: LedgerWriter) -> None:
        """What was acknowledged up to the writer's last add confirmed is a promise from now on."""
        for entry_id in [n for n in sorted(story.unforced) if n <= writer.last_add_confirmed]:
            story.acknowledged(writer, entry_id, story.unforced.pop(entry_id))
            known = {name for name, first in writer.under_replicated.items() if first <= entry_id}
            if missing := story.missing(entry_id) - known:
                story.violated("I7", f"entry {entry_id} was forced when {sorted(missing)} had not synced it")
            self.world.record("writer", "acknowledged", f"{self.name_of(writer)} {entry_id}")

    async def close(self, story: Story, writer: LedgerWriter) -> None:
        """As its user would, who tries again while that may help."""
        while True:
            try:
                await writer.close()
            except BookKeeperError as error:
                self.world.record("writer", "close failed", f"{self.name_of(writer)} {type(error).__name__}")
                if not error.retriable:
                    return
                await asyncio.sleep(0.2)
            else:
                self.forced(story, writer)
                self.world.record("writer", "closed", f"{self.name_of(writer)} {writer.last_add_confirmed}")
                story.ends.append(writer.last_add_confirmed)
                return

    # --- reading ----------------------------------------------------------------------------------------------------

    async def follow(self, client: Client, story: Story) -> None:
        """Tail the ledger until it is closed."""
        next_id = 0
        while True:
            try:
                reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
                async for entry in reader.tail(next_id):
                    story.promises.returned(entry.entry_id, entry.data)
                    if entry.entry_id != next_id:
                        story.violated("I2", f"a tail went from entry {next_id - 1} to {entry.entry_id}")
                    next_id = entry.entry_id + 1
            except TRANSIENT as error:
                self.world.record("reader", "tail failed", f"{self.name_of(story)} {type(error).__name__}")
                await asyncio.sleep(0.1)
                continue
            story.ends.append(next_id - 1)
            return

    # --- recovering -------------------------------------------------------------------------------------------------

    async def recover(self, host: Host, client: Client, story: Story) -> None:
        """Until it is done."""
        while True:
            try:
                reader = await client.recover_ledger(story.ledger_id, password=PASSWORD)
            except TRANSIENT as error:
                host.record("recovery failed", f"{self.name_of(story)} {type(error).__name__}")
                await asyncio.sleep(0.3)
                continue
            host.record("recovered", f"{self.name_of(story)} {reader.last_add_confirmed}")
            story.ends.append(reader.last_add_confirmed)
            if reader.length != story.stored.length:
                story.violated("I3", f"recovery found {reader.length} bytes, the metadata say {story.stored.length}")
            return
