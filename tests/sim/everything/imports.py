"""Ledgers of the second cluster are imported into the first one, by processes that die, are cancelled, and race, while
somebody recovers copies.

In the end each ledger that is left there has a complete copy, with equal entries under equal ids, and none that is
unfinished; no import makes what another has made; and no copy has anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from contextlib import aclosing
from typing import TYPE_CHECKING

from bkpy.admin.client import AdminClient
from bkpy.admin.ledger_import import LedgerImport
from bkpy.errors import BookKeeperError, NoSuchLedgerError
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from tests.sim.coverage_marks import IMPORTED
from tests.sim.stories import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from bkpy.client.client import Client
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

    from .plan import Actor
    from .stage import Stage

MARK = "bookkeeper.ledger"  # names the original in the custom metadata of a copy
QUORUMS = (2, 2, 2)  # of copies: there are always as many bookies


async def import_ledgers(stage: Stage, actor: Actor) -> None:
    """Whatever is closed, again and again, until the storm is over."""
    rng, host = stage.schedule.stream(actor.key), stage.world.hosts[actor.options["host"]]

    async def act(target: Client) -> None:
        source = await _source_of(stage).connect(host)
        while not stage.ended.is_set():
            patience_s = rng.random() * 2 if rng.random() < 0.3 else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await _import_all(stage, source, target)
            await asyncio.sleep(rng.random() * 0.5)
            if rng.random() < 0.3:
                await _recover_one(stage, target, rng)
        await source.close()

    while not stage.ended.is_set():
        await stage.on(host.name, act)


async def settle(stage: Stage, target: Client) -> None:
    """Import all that is left, and compare."""
    part = _source_of(stage)
    source = await part.connect(stage.operating)
    while (failed := await _import_all(stage, source, target)) and not failed <= part.oracle.may_lose:
        await asyncio.sleep(0.3)
    if twice := [ledger_id for ledger_id, times in stage.imported.items() if times > 1]:
        stage.oracle.violate("I2", f"imported: ledgers {twice} more than once")
    originals = {metadata.ledger_id: metadata for metadata in part.oracle.ledgers()}
    copies: defaultdict[int, list[LedgerMetadata]] = defaultdict(list)
    for metadata in _copies(stage):
        copies[int(metadata.custom_metadata[MARK].rpartition(b"/")[2])].append(metadata)
    for ledger_id in originals.keys() - failed:
        ends = [copy.last_entry if copy.state is LedgerState.CLOSED else None for copy in copies[ledger_id]]
        if not ends or set(ends) != {originals[ledger_id].last_entry}:
            what = f"ledger {ledger_id} ends at {originals[ledger_id].last_entry}, and its copies at {ends}"
            stage.oracle.violate("I2", f"imported: {what}")
    for ledger_id, some in copies.items():
        story = part.stories.by_id.get(ledger_id)  # none of one whose creator has died
        contents = {} if story is None else dict(story.payloads)
        if ledger_id in originals.keys() - failed:
            contents |= enumerate(await _read(source, originals[ledger_id]))
        for copy in some:
            for entry_id, data in enumerate(await _read(target, copy)):
                if contents.get(entry_id, data) != data:
                    what = f"entry {entry_id} of ledger {copy.ledger_id} is not that of ledger {ledger_id}"
                    stage.oracle.violate("I2", f"imported: {what}")
    await source.close()


async def _recover_one(stage: Stage, client: Client, rng: Random) -> None:
    """Somebody recovers a copy that isn't finished: what there is of it gets closed, under its import or behind it."""
    unfinished = [metadata.ledger_id for metadata in _copies(stage) if metadata.state is not LedgerState.CLOSED]
    if unfinished:
        with contextlib.suppress(BookKeeperError):
            await client.recover_ledger(rng.choice(unfinished), password=PASSWORD)


def _copies(stage: Stage) -> Iterator[LedgerMetadata]:
    return (metadata for metadata in stage.oracle.ledgers() if MARK in metadata.custom_metadata)


def _source_of(stage: Stage) -> Stage:
    return next(part for part in stage.parts if part.cluster.tree.of_bookkeeper)


async def _import_all(stage: Stage, source: Client, target: Client) -> set[int]:
    """The ids of those that failed; -1 stands for the import as a whole."""
    failed: set[int] = set()
    importing = LedgerImport(AdminClient(source), AdminClient(target), password=PASSWORD, quorums=QUORUMS)
    try:
        await importing.begin()
        async with aclosing(importing.closed_ledgers()) as ids:
            async for ledger_id in ids:
                try:
                    copied = await importing.copy(ledger_id, lambda some, of_all: None)
                    stage.world.marks[IMPORTED] += copied.new
                    stage.imported[ledger_id] += copied.new
                except NoSuchLedgerError:
                    pass  # it was deleted meanwhile
                except BookKeeperError as error:
                    stage.world.record("import", "failed", f"ledger {ledger_id} {error}")
                    failed.add(ledger_id)
    except BookKeeperError as error:
        stage.world.record("import", "failed", str(error))
        failed.add(-1)
    return failed


async def _read(client: Client, metadata: LedgerMetadata) -> list[bytes]:
    async with await client.open_ledger(metadata.ledger_id, password=PASSWORD) as reader:
        if metadata.last_entry < 0:
            return []
        return [entry.data async for entry in reader.read(0, metadata.last_entry)]
