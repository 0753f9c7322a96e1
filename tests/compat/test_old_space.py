"""Today's bookies go on giving space back in what earlier versions left behind, and lose nothing meanwhile.

Also in the middle of it: a compaction and a round of the scrub that were killed, batches in journal files, no journal.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import bkpy
from bkpy.local.process import free_port
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime
from tests.command import PATIENCE_S, PRELOADED, environment
from tests.conftest import run_elsewhere
from tests.waiting import eventually

from . import raw
from .make_space import HURRIED, PAUSE_S, SPACES, ask, collect, reclaimed
from .software import BookieProcess, Software, restore_tree, unpack
from .test_old_data import VERSIONS, entries_of, inherit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer

IN_LIMBO = {"lost", "unsynced"}  # killed, without a journal or its syncs, on a machine that isn't this one


class Ledger(NamedTuple):
    id: int
    entries: dict[int, bytes]
    bookies: list[str]
    deleted: bool


class Left(NamedTuple):
    """A cluster of today's bookies on what bookies of an earlier version left behind."""

    name: str
    uri: str
    bookies: dict[str, BookieProcess]
    ledgers: dict[str, Ledger]

    async def start(self, *names: str) -> None:
        store, root = await connect_store(self.uri, real_runtime())
        try:
            await asyncio.gather(*(self.bookies[name].start(Software.today(), store, root) for name in names))
        finally:
            await store.close()

    async def check(self) -> None:
        """Every bookie has what it acknowledged, or can't tell if it is in limbo; and nothing of what was deleted."""
        for name, ledger in self.ledgers.items():
            for bookie_id in ledger.bookies:
                wanted = {} if ledger.deleted else ledger.entries
                found, unknown = await raw.read(self.bookies[bookie_id].address, ledger.id, len(ledger.entries) + 5)
                if bookie_id in IN_LIMBO:
                    assert found.items() <= wanted.items(), (name, bookie_id)
                    assert wanted.keys() <= found.keys() | unknown, (name, bookie_id)
                    assert name == "last" or found == wanted, (name, bookie_id)  # all else was in the index
                else:
                    assert (found, unknown) == (wanted, set()), (name, bookie_id)


async def take_over(name: str, directory: Path, zookeeper: ZooKeeperServer) -> Left:
    contents = json.loads((SPACES / name / "contents.json").read_text())
    unpack(SPACES / name / "bookies.tar.xz", directory)
    uri = f"zk://{zookeeper.connect_string}/space-{name}"
    ledgers = {
        ledger_name: Ledger(
            ledger["id"],
            {i: text.encode() * times for i, (text, times) in enumerate(ledger["entries"])},
            ledger["bookies"],
            ledger["deleted"],
        )
        for ledger_name, ledger in contents["ledgers"].items()
    }
    bookies = {
        bookie_id: BookieProcess(bookie_id, directory / bookie_id, uri, **settings, **HURRIED, metrics_port=free_port())
        for bookie_id, settings in contents["bookies"].items()
    }
    left = Left(name, uri, bookies, ledgers)
    store, root = await connect_store(uri, real_runtime())
    try:
        nodes = json.loads((SPACES / name / "metadata.json").read_text())
        await restore_tree(store, root, nodes, max(ledger.id for ledger in ledgers.values()) + 1)
    finally:
        await store.close()
    await left.start(*bookies)
    return left


@pytest.fixture(scope="module", params=sorted(path.name for path in SPACES.iterdir()))
def left(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Left]:
    cluster = run_elsewhere(take_over(request.param, tmp_path_factory.mktemp("space"), zookeeper))
    yield cluster
    for bookie in cluster.bookies.values():
        run_elsewhere(bookie.kill())


async def check_files(bookie: BookieProcess) -> None:
    """Nothing in the stopped bookie's directories is wrong."""
    done = await asyncio.to_thread(
        PRELOADED.run,
        ["bookie", "check", "--json", "--config", f"../{bookie.id}.toml"],
        stdin=b"",
        env=environment(None),
        timeout_s=PATIENCE_S,
        directory=str(bookie.directory),
    )
    assert done.returncode == 0, (bookie.id, done.stdout, done.stderr)


async def test_each_bookie_has_what_it_acknowledged_and_nothing_of_what_was_deleted(left: Left) -> None:
    assert {ledger.deleted for ledger in left.ledgers.values()} == {True, False}
    await left.check()


async def test_what_was_deleted_or_fenced_is_fenced_and_nothing_else_is(left: Left) -> None:
    for name, ledger in left.ledgers.items():
        for bookie_id in ledger.bookies:
            closed = ledger.deleted or name == "fenced"
            entry_id = len(ledger.entries) if closed else 0
            payload = b"too late" if closed else ledger.entries[0]
            status = await raw.add(left.bookies[bookie_id].address, ledger.id, entry_id, payload)
            if bookie_id in IN_LIMBO:
                assert status != raw.OK, (name, bookie_id)
            else:
                assert status == (raw.FENCED if closed else raw.OK), (name, bookie_id)


async def test_the_scrub_goes_on_where_it_was_and_finds_nothing(left: Left) -> None:
    with tarfile.open(SPACES / left.name / "bookies.tar.xz") as archive:
        file = archive.extractfile("kept/ledgers/scrub.json")
        assert file is not None
        stored = json.load(file)
    assert stored["round"]["ledger_id"] > 0

    async def resumed() -> bool:
        directory = (await ask(left.bookies["kept"], "scrub"))["directories"][0]
        return bool(directory["rounds"] or directory["running"])

    await eventually(resumed, "the stored round goes on, and no request starts one", pause_s=PAUSE_S)
    for bookie in left.bookies.values():

        async def through(bookie: BookieProcess = bookie) -> bool:
            directories: list[dict[str, Any]] = (await ask(bookie, "scrub"))["directories"]
            return all(directory["rounds"] > 0 and not directory["running"] for directory in directories)

        if not await through():
            await ask(bookie, "scrub", {})
        await eventually(through, pause_s=PAUSE_S)
        assert (await ask(bookie, "scrub"))["damages"] == [], bookie.id


@pytest.mark.exhaustive
async def test_an_interrupted_compaction_goes_on_and_more_is_collected(left: Left) -> None:
    """The last test: it changes what it is about, and stops the bookies."""
    await asyncio.gather(*map(reclaimed, left.bookies.values()))
    await left.check()
    gone = ("small 1", "small 4", "large 2")
    count = len(left.bookies.keys() - IN_LIMBO)  # any of them: limbo ends
    async with bkpy.connect(left.uri) as client:
        for name in gone:
            await client.delete_ledger(left.ledgers[name].id)
            left.ledgers[name] = left.ledgers[name]._replace(deleted=True)
        payloads = [b"new %d; " % k * 2000 for k in range(20)]
        async with await client.create_ledger(ensemble_size=count, write_quorum=count, ack_quorum=count) as writer:
            await writer.append_batch(payloads)
    left.ledgers["new"] = Ledger(
        writer.ledger_id, dict(enumerate(payloads)), sorted({*writer.ensemble} - IN_LIMBO), False
    )
    for bookie in left.bookies.values():
        assert (await collect(bookie))["gone"] == len(gone)
    await left.check()
    for bookie in left.bookies.values():
        await (bookie.stop() if bookie.id == "memory" else bookie.kill())  # that one would be in limbo, too
    await left.start(*left.bookies)
    await left.check()
    await asyncio.gather(*map(reclaimed, left.bookies.values()))
    assert not list(left.bookies["kept"].directory.glob("ledgers/800001a*.txn")), "the file is compacted, and gone"
    await left.check()
    for bookie in left.bookies.values():
        await bookie.stop()
        await check_files(bookie)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
async def test_collection_and_compaction_of_the_first_versions_directories(
    version: str, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Rows of its logs don't say what lives; nor does anything of its stop in the middle."""
    inherited = await inherit(version, tmp_path, zookeeper, root=f"space-{version}", **HURRIED)
    gone = ("replicated", "large, checkpointed", "journaled")

    def bytes_of_logs() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*.log"))

    kept = [name for name, ledger in inherited.ledgers.items() if ledger.state == "CLOSED" and name not in gone]
    for bookie in inherited.bookies.values():
        await collect(bookie)  # what the old software had deleted, as for the truncation of a log
    async with bkpy.connect(inherited.uri) as client:
        before = bytes_of_logs()
        for name in gone:
            await client.delete_ledger(inherited.ledgers[name].id)
        for again in (False, True):
            for bookie in inherited.bookies.values():
                assert (await collect(bookie))["gone"] == (0 if again else len(gone))
            await asyncio.gather(*map(reclaimed, inherited.bookies.values()))
            for name in kept:
                ledger = inherited.ledgers[name]
                assert await entries_of(client, ledger) == ledger.entries, name
            for name in gone:
                for bookie in inherited.bookies.values():
                    status = await raw.add(bookie.address, inherited.ledgers[name].id, 1000, b"too late")
                    assert status == raw.FENCED, (name, bookie.id)
            if not again:
                for bookie in inherited.bookies.values():
                    await bookie.kill()
                await inherited.start(*inherited.bookies)
    copies = 4 if version == "0.1.0" else 2  # of the large one in entry logs; later versions keep it in journal files
    assert bytes_of_logs() < before - copies * 2_000_000
    for bookie in inherited.bookies.values():
        await bookie.stop()
        await check_files(bookie)
