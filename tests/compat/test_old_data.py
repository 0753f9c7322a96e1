"""Today's bookies start on what every earlier version left behind, and have all of it: entries, fences, keys."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import bkpy
from bkpy.client.client import Client, open_client
from bkpy.config.client import client_settings
from bkpy.local.process import free_port
from bkpy.metadata.connect import connect_store
from bkpy.metadata.logs.maintenance import LOG_NAME
from bkpy.metadata.store.memory import MemoryStore
from bkpy.runtime.system import real_runtime
from tests.conftest import run_elsewhere

from . import raw
from .software import STATES, BookieProcess, Software, dump_tree, restore_tree, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

VERSIONS = sorted(path.name for path in STATES.iterdir())


class Ledger(NamedTuple):
    id: int
    password: bytes
    state: str
    entries: list[bytes]
    confirmed: int
    fenced_on: list[str]
    write_quorum: int
    ack_quorum: int


class Log(NamedTuple):
    password: bytes
    entries: list[bytes]  # all that was acknowledged, from position 0 on
    first: int  # entries before it were truncated
    consumers: dict[str, int]


class Inherited(NamedTuple):
    """A cluster of today's bookies on an earlier version's directories and metadata."""

    uri: str
    bookies: dict[str, BookieProcess]
    ledgers: dict[str, Ledger]
    logs: dict[str, Log]  # none of a version that had none

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        store, root = await connect_store(self.uri, real_runtime())
        try:
            yield store, root
        finally:
            await store.close()

    async def start(self, *names: str) -> None:
        async with self.metadata() as (store, root):
            await asyncio.gather(*(self.bookies[name].start(Software.today(), store, root) for name in names))


async def inherit(
    version: str, directory: Path, zookeeper: ZooKeeperServer, *, root: str = "", **settings: Any
) -> Inherited:
    """`root`: in ZooKeeper. The bookies get these settings besides their own."""
    contents = json.loads((STATES / version / "contents.json").read_text())
    unpack(STATES / version / "bookies.tar.xz", directory)
    uri = f"zk://{zookeeper.connect_string}/{root or version}"
    bookies = {
        name: BookieProcess(name, directory / name, uri, **own, **settings, metrics_port=free_port())
        for name, own in contents["bookies"].items()
    }
    ledgers = {
        name: Ledger(
            ledger["id"],
            ledger["password"].encode(),
            ledger["state"],
            [text.encode() * times for text, times in ledger["entries"]],
            ledger["confirmed"],
            ledger["fenced_on"],
            ledger["write_quorum"],
            ledger["ack_quorum"],
        )
        for name, ledger in contents["ledgers"].items()
    }
    logs = {
        name: Log(log["password"].encode(), list(map(str.encode, log["entries"])), log["first"], log["consumers"])
        for name, log in contents.get("logs", {}).items()
    }
    inherited = Inherited(uri, bookies, ledgers, logs)
    async with inherited.metadata() as (store, root):
        await restore_tree(store, root, json.loads((STATES / version / "metadata.json").read_text()))
    await inherited.start(*bookies)
    return inherited


@pytest.fixture(scope="module", params=VERSIONS)
def inherited(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inherited]:
    cluster = run_elsewhere(inherit(request.param, tmp_path_factory.mktemp("compat"), zookeeper))
    yield cluster
    for bookie in cluster.bookies.values():
        run_elsewhere(bookie.stop())


async def entries_of(client: Client, ledger: Ledger) -> list[bytes]:
    async with await client.open_ledger(ledger.id, password=ledger.password) as reader:
        return [entry.data async for entry in reader.read()]


async def test_every_ledger_is_as_it_was(inherited: Inherited) -> None:
    async with bkpy.connect(inherited.uri) as client:
        found = [i async for i in client.list_ledgers()]
        of_no_log = [i for i in found if LOG_NAME not in (await client.ledger_metadata(i)).custom_metadata]
        assert of_no_log == sorted(ledger.id for ledger in inherited.ledgers.values())
        assert (len(found) > len(of_no_log)) is bool(inherited.logs)
        for name, ledger in inherited.ledgers.items():
            async with await client.open_ledger(ledger.id, password=ledger.password) as reader:
                assert (reader.metadata.state, reader.last_add_confirmed) == (ledger.state, ledger.confirmed), name
                if reader.closed:
                    assert reader.length == sum(map(len, ledger.entries)), name
            assert await entries_of(client, ledger) == ledger.entries[: ledger.confirmed + 1], name


async def test_a_wrong_password_is_refused(inherited: Inherited) -> None:
    protected = [ledger for ledger in inherited.ledgers.values() if ledger.password]
    assert protected
    async with bkpy.connect(inherited.uri) as client:
        for ledger in protected:
            with pytest.raises(bkpy.UnauthorizedError):
                await client.open_ledger(ledger.id, password=b"guessed")
            for bookie in inherited.bookies.values():
                status = await raw.add(bookie.address, ledger.id, len(ledger.entries), b"forged", password=b"guessed")
                assert status == raw.UNAUTHORIZED


def only_on(bookie_id: str, value: str, entries: list[bytes]) -> str:
    """A ledger's metadata in which every other bookie has another name, that no bookie has; and it is closed."""
    metadata: dict[str, Any] = json.loads(value)
    for fragment in metadata["fragments"]:
        fragment["bookies"] = [b if b == bookie_id else f"gone-{b}" for b in fragment["bookies"]]
    metadata.update(state="CLOSED", last_entry=len(entries) - 1, length=sum(map(len, entries)))
    return json.dumps(metadata)


def held_by(bookie_id: str, ledger: Ledger, value: str) -> Iterator[int]:
    fragments = json.loads(value)["fragments"]
    for entry_id in range(len(ledger.entries)):
        bookies = [f["bookies"] for f in fragments if f["first_entry"] <= entry_id][-1]
        if bookie_id in [bookies[(entry_id + k) % len(bookies)] for k in range(ledger.write_quorum)]:
            yield entry_id


def runs(ids: list[int]) -> list[tuple[int, int]]:
    """The ascending ids as (first, last) of those without a gap."""
    firsts = [i for i in ids if i - 1 not in ids]
    lasts = [i for i in ids if i + 1 not in ids]
    return list(zip(firsts, lasts, strict=True))


async def test_each_bookie_has_all_that_it_acknowledged(inherited: Inherited) -> None:
    async with inherited.metadata() as (store, root):
        nodes = await dump_tree(store, root)
        registered = {name: await store.get(f"{root}/available/{name}") for name in inherited.bookies}
    for bookie_id in inherited.bookies:
        seen = dict(nodes)
        held: dict[str, list[int]] = {}
        for name, ledger in inherited.ledgers.items():
            path = next(path for path in nodes if path.endswith(f"/L{ledger.id:04d}"))
            held[name] = list(held_by(bookie_id, ledger, nodes[path]))
            seen[path] = only_on(bookie_id, nodes[path], ledger.entries)
        tree = MemoryStore(real_runtime())
        await restore_tree(tree.session(), root, seen)
        await tree.session().create(f"{root}/available/{bookie_id}", registered[bookie_id][0])
        async with await open_client(tree.session(), root, real_runtime(), client_settings()) as client:
            for name, ledger in inherited.ledgers.items():
                async with await client.open_ledger(ledger.id, password=ledger.password) as reader:
                    for first, last in runs(held[name]):
                        found = [e.data async for e in reader.read(first, last)]
                        assert found == ledger.entries[first : last + 1], (bookie_id, name, first)
        assert sum(map(len, held.values())) > 100


async def test_fences_hold_and_nothing_else_is_fenced(inherited: Inherited) -> None:
    """A writer that goes on is refused where its ledger was fenced. What was stored is taken again anywhere else."""
    statuses: dict[tuple[str, str], int] = {}
    expected: dict[tuple[str, str], int] = {}
    for name in ("recovered", "in recovery", "journaled", "open, told"):
        ledger = inherited.ledgers[name]
        for bookie in inherited.bookies.values():
            fenced = bookie.id in ledger.fenced_on
            entry_id = len(ledger.entries) if fenced else 0
            payload = b"too late" if fenced else ledger.entries[0]
            statuses[name, bookie.id] = await raw.add(bookie.address, ledger.id, entry_id, payload)
            expected[name, bookie.id] = raw.FENCED if fenced else raw.OK
    assert statuses == expected
    assert set(expected.values()) == {raw.FENCED, raw.OK}


async def test_new_ledgers_go_on_where_the_old_ones_are(inherited: Inherited) -> None:
    async with bkpy.connect(inherited.uri) as client:
        payloads = [b"new %d" % i for i in range(500)]
        writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4)
        await writer.append_batch(payloads)
        for bookie in inherited.bookies.values():
            await bookie.kill()
        await inherited.start(*inherited.bookies)
        await writer.append(b"and after")
        await writer.close()
        async with await client.open_ledger(writer.ledger_id) as reader:
            assert [e.data async for e in reader.read()] == [*payloads, b"and after"]
        for name in ("replicated", "large, checkpointed", "large, journaled"):
            assert await entries_of(client, inherited.ledgers[name]) == inherited.ledgers[name].entries, name
        await client.delete_ledger(writer.ledger_id)


async def test_logs_are_read_and_written_on(inherited: Inherited) -> None:
    """Also with pages, into which the list of the former format moves. Consumers are where they were."""
    async with (
        inherited.metadata() as (store, root),
        await open_client(store, root, real_runtime(), client_settings(log_page_rows=2)) as client,
    ):
        assert sorted([name async for name in client.list_logs()]) == sorted(inherited.logs)
        for name, log in inherited.logs.items():
            expected = list(enumerate(log.entries))[log.first :]
            async with await client.read_log(name, password=log.password) as reader:
                found = [(entry.position, entry.data) async for entry in reader.read()]
                assert found == expected[: len(found)], name
                assert {one.name: one.position for one in await reader.consumers()} == log.consumers
                for consumer, position in log.consumers.items():
                    await (await reader.consumer(consumer, lease=True)).commit(position + 1)
            # Whose writer was killed has an end that nobody has looked for.
            writer = await client.open_log(name, password=log.password, producer="shop", roll_entries=2)
            assert writer.next_position == len(log.entries), name
            for number in range(20):
                assert await writer.append(b"new %d" % number, sequence=number) == len(log.entries) + number
                await asyncio.sleep(0.02)
            assert await writer.append(b"again", sequence=7) == len(log.entries) + 7
            await writer.close()
            async with await client.read_log(name, password=log.password) as reader:
                expected += list(enumerate([b"new %d" % number for number in range(20)], len(log.entries)))
                assert [(entry.position, entry.data) async for entry in reader.read()] == expected, name
                numbers = [entry.sequence async for entry in reader.read(len(log.entries) - 1)]
                assert numbers == [None, *range(20)]
            described = await bkpy.AdminClient(client).describe_log(name)
            assert described.log_list.pages, name
            await client.delete_log(name)
        assert [name async for name in client.list_logs()] == []


async def test_what_was_left_open_is_recovered_whole(inherited: Inherited) -> None:
    """The last test: it changes the ledgers that it is about."""
    async with bkpy.connect(inherited.uri) as client:
        for name in ("open, told", "open, not told", "in recovery"):
            ledger = inherited.ledgers[name]
            async with await client.recover_ledger(ledger.id) as reader:
                assert [e.data async for e in reader.read()] == ledger.entries, name
            statuses = [
                await raw.add(bookie.address, ledger.id, len(ledger.entries), b"too late")
                for bookie in inherited.bookies.values()
            ]
            # No ack quorum is left without a fence. The others may be without, if they were slow to answer.
            assert statuses.count(raw.FENCED) > ledger.write_quorum - ledger.ack_quorum, name
