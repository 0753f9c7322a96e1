"""The users of ledgers: writers, recoveries, readers, tails, deletions, moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from bkpy.client.client import replication_context
from bkpy.errors import BookKeeperError, ClientClosedError, NoSuchEntryError, NotEnoughBookiesError
from bkpy.metadata.replication.manual import manual_moves
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from tests.faults.oracle import number_of
from tests.sim.coverage_marks import ALL_MOVED, CLOSED_IN_BETWEEN, MOVED_COPY
from tests.sim.mover import move
from tests.sim.stories import PASSWORD
from tests.sim.users import TRANSIENT

from .stage import CREATION

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from bkpy.client.client import Client
    from bkpy.client.read.block import Entry
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.writer import LedgerWriter

    from .oracle import LedgerStory
    from .plan import Actor, Options
    from .stage import Stage


async def write(stage: Stage, actor: Actor) -> None:
    """One ledger; when the writer's process dies, that was it."""
    await stage.on(actor.options["host"], lambda client: _write(stage, actor, client))


async def visit(stage: Stage, actor: Actor) -> None:
    """The same with a client of its own, which is closed in the midst of it."""
    host = stage.world.hosts[actor.options["host"]]

    async def act(_: Client) -> None:
        client = await stage.connect(host)
        writing = asyncio.ensure_future(_write(stage, actor, client))
        await asyncio.wait([writing], timeout=actor.options["stays_s"])
        await client.close()
        with contextlib.suppress(ClientClosedError):  # it had no ledger yet
            await writing
        stage.world.marks[CLOSED_IN_BETWEEN] += 1

    await stage.on(host.name, act)


async def _write(stage: Stage, actor: Actor, client: Client) -> None:
    options, rng = actor.options, stage.schedule.stream(actor.key)
    writer = await _begin(stage, actor, client)
    story = stage.oracle.story(writer.ledger_id)
    story.host = options["host"]
    stage.announce(actor.key, story)
    try:
        while story.promises.sent < options["appends"]:
            await stage.call(story.host, _append(stage, story, writer, rng, options))
            await asyncio.sleep(rng.random() * options["pause_s"])
    except BookKeeperError as error:
        story.failure = error
        stage.world.record("writer", "append failed", f"{stage.name_of(writer)} {type(error).__name__}")
        await stage.append_in_vain(story, writer, rng)
    if options["end"] == "hold":
        await stage.ended.wait()
    if options["end"] != "leave":
        await _until_done(stage, story.host, "close", lambda: stage.close(story, writer))
        await stage.append_in_vain(story, writer, rng)
    else:
        writer.abandon()


async def _append(stage: Stage, story: LedgerStory, writer: LedgerWriter, rng: Random, options: Options) -> None:
    batch_max = options["batch_max"]
    if options.get("caller_ids"):
        await stage.append_by_ids(story, writer, rng, batch_max)
    elif batch_max == 1:
        await stage.append(story, writer, rng)
    else:
        await stage.append_some(story, writer, rng, batch_max)
    if "forces" in options and rng.random() < options["forces"]:
        await stage.force(story, writer)


async def _begin(stage: Stage, actor: Actor, client: Client) -> LedgerWriter:
    begun: list[LedgerWriter] = []
    for attempt in itertools.count():
        more: dict[str, Any] = {"caller_ids": True} if actor.options.get("caller_ids") else {}
        if "forces" in actor.options:
            more["deferred_sync"] = True
        if stage.cancels_all:
            more["custom_metadata"] = {CREATION: f"{actor.key}/{attempt}".encode()}

        async def begin(more: dict[str, Any] = more) -> None:
            begun.append(await stage.begin(client, tuple(actor.options["sizes"]), **more))

        try:
            await stage.call(actor.options["host"], begin(), kind="creation")
        except (NotEnoughBookiesError, *TRANSIENT):
            await asyncio.sleep(0.1)
        else:
            if begun:
                break
            stage.cancelled_creations.add(more["custom_metadata"][CREATION])
    return begun[0]


async def _until_done(stage: Stage, host: str, kind: str, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A call that is cancelled is made again."""
    done = False

    async def call() -> None:
        nonlocal done
        await act()
        done = True

    while not done:
        await stage.call(host, call(), kind=kind)


async def duel(stage: Stage, actor: Actor) -> None:
    """Recover the ledger while its writer writes on."""
    story = await stage.story_of(actor.options["of"])
    if story is None:
        return
    host = stage.world.hosts[actor.options["host"]]

    async def act(client: Client) -> None:
        await _until_done(stage, host.name, "recovery", lambda: stage.recover(host, client, story))

    await _with(stage, actor, story, act)


async def read(stage: Stage, actor: Actor) -> None:
    """Look at the ledger's end now and then."""
    story = await stage.story_of(actor.options["of"])
    if story is None:
        return
    rng = stage.schedule.stream(actor.key)

    async def look(client: Client) -> None:
        for _ in range(5):
            await stage.stories.look(client, story)
            await asyncio.sleep(rng.random() * 0.5)

    await _with(stage, actor, story, look)


async def probe(stage: Stage, actor: Actor) -> None:
    """Ask how far the ledger may be read, and read it in the other ways that there are."""
    story = await stage.story_of(actor.options["of"])
    if story is None:
        return
    rng = stage.schedule.stream(actor.key)

    async def look(client: Client) -> None:
        for _ in range(6):
            try:
                async with await client.open_ledger(story.ledger_id, password=PASSWORD) as reader:
                    await _probe(story, reader, rng)
            except BookKeeperError as error:
                stage.world.record("prober", "failed", f"{stage.name_of(story)} {type(error).__name__}")
            await asyncio.sleep(rng.random() * 0.4)

    await _with(stage, actor, story, look)


async def _probe(story: LedgerStory, reader: LedgerReader, rng: Random) -> None:
    before = reader.last_add_confirmed
    last = await reader.read_last_add_confirmed()
    most = story.most
    if last < before:
        story.violated("I5", f"a reader that had been told of entry {before} was told of entry {last}")
    if most is not None and last > most:
        story.violated("I5", f"a reader was told of entry {last}, and the last one was {most}")
    way, acknowledged = rng.randrange(3), set(story.payloads)
    try:
        if way == 0:
            async for block in reader.read_blocks(max(0, last - 20), last):
                for entry in block:
                    story.promises.returned(entry.entry_id, entry.data)
        elif way == 1:
            async for entry in reader.read_unconfirmed(max(0, last - 3), last + rng.randrange(1, 6)):
                _unconfirmed(story, entry)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.random()):
                    async for block in reader.tail_blocks(max(0, last - 3)):
                        for entry in block:
                            story.promises.returned(entry.entry_id, entry.data)
    except NoSuchEntryError as error:
        if way != 1 or error.entry_id in acknowledged:
            story.violated("I2", f"an entry that may be read was denied: {error}")


def _unconfirmed(story: LedgerStory, entry: Entry) -> None:
    """It need not stay, but nobody appended anything else."""
    try:
        number_of(story.ledger_id, entry.data)
    except ValueError as error:
        story.violated("I2", f"entry {entry.entry_id} was read: {error}")
    if story.payloads.get(entry.entry_id, entry.data) != entry.data:
        story.violated("I2", f"entry {entry.entry_id} was acknowledged, and read with other bytes")


async def tail(stage: Stage, actor: Actor) -> None:
    """Follow the ledger to its end."""
    story = await stage.story_of(actor.options["of"])
    if story is not None:
        await _with(stage, actor, story, lambda client: stage.follow(client, story))


async def _with(stage: Stage, actor: Actor, story: LedgerStory, act) -> None:  # type: ignore[no-untyped-def]
    """Until it is done; of a ledger that is deleted nothing is expected."""
    try:
        while not await stage.on(actor.options["host"], act):
            pass
    except BookKeeperError as error:
        if not story.deleted:
            raise
        stage.world.record("actor", "of a deleted ledger", f"{actor.key} {type(error).__name__}")


async def move_copies(stage: Stage, actor: Actor) -> None:
    """As re-replication does, for no other reason than that they are moved."""
    story = await stage.story_of(actor.options["of"])
    if story is None:
        return
    rng = stage.schedule.stream(actor.key)

    async def act(client: Client) -> None:
        context = replication_context(client)
        store, root, runtime = context.cluster.store, context.cluster.root, context.parts.runtime
        with contextlib.suppress(*TRANSIENT):  # the auditor can't be told now
            async with manual_moves(store, root, actor.key, runtime, stage.settings):
                if "moves_all" in actor.options:
                    await _move_all(stage, client, story.ledger_id, rng)
                    return
                for _ in range(rng.choice((1, 2, 4))):
                    stage.world.marks[MOVED_COPY] += await move(client, story.ledger_id, rng)
                    await asyncio.sleep(rng.random())

    await stage.on(actor.options["host"], act)


async def _move_all(stage: Stage, client: Client, ledger_id: int, rng: Random) -> None:
    """Once it is closed, until no bookie has a copy that had one before, if that can be."""
    before: frozenset[str] = frozenset()
    for _ in range(20):
        metadata = await client.ledger_metadata(ledger_id)
        if metadata.state is LedgerState.CLOSED:
            before = before or metadata.needed_bookies
            stage.world.marks[MOVED_COPY] += await move(client, ledger_id, rng, of=before)
        if before and not (await client.ledger_metadata(ledger_id)).needed_bookies & before:
            stage.world.marks[ALL_MOVED] += 1
            return
        await asyncio.sleep(rng.random() * 0.3)


async def delete(stage: Stage, actor: Actor) -> None:
    """Until it is certain that the ledger is deleted."""
    story = await stage.story_of(actor.options["of"])
    if story is None:
        return
    story.deleted = True

    async def act(client: Client) -> None:
        while stage.oracle.is_stored(story.ledger_id):
            try:
                await stage.call(actor.options["host"], client.delete_ledger(story.ledger_id), kind="deletion")
            except BookKeeperError as error:
                stage.world.record("deletion", "failed", f"{stage.name_of(story)} {type(error).__name__}")
                await asyncio.sleep(0.2)

    while not await stage.on(actor.options["host"], act):
        pass


async def lose_patience(stage: Stage, actor: Actor) -> None:
    """Cancel what the client's callers wait for, now and then."""
    rng = stage.schedule.stream(actor.key)
    for _ in range(actor.options["times"]):
        await asyncio.sleep(rng.random() ** 2 * 0.3)
        stage.cancel_calls(actor.options["host"])
