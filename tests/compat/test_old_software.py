"""Clients and bookies of earlier versions and of today work together, in every combination, and change places."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.local.process import free_port
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime
from tests.conftest import run_elsewhere
from tests.waiting import eventually

from .raw import ADD, READ, FromTheFuture
from .software import DEADLINE_S, STATES, BookieProcess, RemoteClient, RemoteError, Software

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

*_EARLIER, _NEWEST = sorted(path.name for path in STATES.iterdir())
VERSIONS = [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in _EARLIER), _NEWEST]
ENTRIES = [f"entry {i} " * (i % 9) for i in range(300)]

LEDGERS: dict[str, dict[str, Any]] = {
    "replicated": {"write_quorum": 2, "ack_quorum": 2},
    "with a password": {"write_quorum": 2, "ack_quorum": 2, "password": "sesame", "digest": "hmac-sha256"},
}
ENSEMBLES = {
    "on old bookies": ["old-1", "old-2"],
    "on today's bookies": ["today-1", "today-2"],
    "on both": ["old-1", "today-1"],
    "striped over all": ["old-1", "today-1", "old-2", "today-2"],
}


class Mixed:
    """Two bookies of an earlier version and two of today, in one cluster."""

    def __init__(self, old: Software, directory: Path, zookeeper: ZooKeeperServer) -> None:
        self.software = {"old": old, "today": Software.today()}
        self.uri = f"zk://{zookeeper.connect_string}/mixed-{old.name}"
        self.bookies = {
            name: BookieProcess(
                name,
                directory / name,
                self.uri,
                journal_max_size_mb=4,
                journal_directories=[str(directory / name / "journal")],
                ledger_directories=[str(directory / name / "ledgers")],
            )
            for name in ("old-1", "old-2", "today-1", "today-2")
        }

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        store, root = await connect_store(self.uri, real_runtime())
        try:
            yield store, root
        finally:
            await store.close()

    async def start(self) -> None:
        async with self.metadata() as (store, root):
            await init_cluster(store, root)
            await asyncio.gather(
                *(b.start(self.software[name.partition("-")[0]], store, root) for name, b in self.bookies.items())
            )

    async def replace(self, bookie: str, age: str) -> None:
        """Stop the bookie, and start it again with the other version's program."""
        await self.bookies[bookie].stop()
        async with self.metadata() as (store, root):
            await self.bookies[bookie].start(self.software[age], store, root)

    @asynccontextmanager
    async def clients(self, *ages: str, **settings: Any) -> AsyncIterator[list[RemoteClient]]:
        clients: list[RemoteClient] = []
        try:
            for age in ages:
                clients.append(await RemoteClient.start(self.software[age], self.uri, **settings))
            yield clients
        finally:
            for client in clients:
                await client.stop()


@pytest.fixture(scope="module", params=VERSIONS)
def mixed(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixed]:
    wheel = next((STATES / request.param).glob("*.whl"))
    old = Software.unpacked(wheel, tmp_path_factory.mktemp("software"))
    cluster = Mixed(old, tmp_path_factory.mktemp("mixed"), zookeeper)
    run_elsewhere(cluster.start())
    yield cluster
    for bookie in cluster.bookies.values():
        run_elsewhere(bookie.stop())


@pytest.mark.parametrize("ensemble", ENSEMBLES)
async def test_what_one_writes_the_other_reads_and_recovers(mixed: Mixed, ensemble: str) -> None:
    async with mixed.clients("old", "today") as both:
        for writer, other in (both, reversed(both)):
            for name, options in LEDGERS.items():
                password = options.get("password", "")
                closed = await writer.do("create", ensemble=ENSEMBLES[ensemble], **options)
                await writer.do("append", ledger_id=closed, entries=ENTRIES)
                tailed = await other.do("tail", ledger_id=closed, count=len(ENTRIES), password=password)
                assert tailed == ENTRIES, name
                await writer.do("close", ledger_id=closed)
                assert await other.do("read", ledger_id=closed, password=password) == ENTRIES, name

                taken_over = await writer.do("create", ensemble=ENSEMBLES[ensemble], **options)
                await writer.do("append", ledger_id=taken_over, entries=ENTRIES)
                assert await other.do("recover", ledger_id=taken_over, password=password) == ENTRIES, name
                with pytest.raises(RemoteError, match="LedgerFencedError"):
                    await writer.do("append", ledger_id=taken_over, entries=["too late"])
                assert await writer.do("read", ledger_id=taken_over, password=password) == ENTRIES, name


@pytest.mark.parametrize(("writer_age", "other_age"), [("old", "today"), ("today", "old")])
async def test_ids_of_the_caller_and_deferred_syncs(mixed: Mixed, writer_age: str, other_age: str) -> None:
    async with mixed.clients(writer_age, other_age) as (writer, other):
        quorums = {"write_quorum": 2, "ack_quorum": 2}
        chosen = await writer.do("create", ensemble=ENSEMBLES["on both"], caller_ids=True, **quorums)
        backwards = list(range(len(ENTRIES)))[::-1]
        await writer.do("append", ledger_id=chosen, entries=ENTRIES[::-1], ids=backwards)
        assert await other.do("recover", ledger_id=chosen) == ENTRIES

        deferred = await writer.do("create", ensemble=ENSEMBLES["on both"], deferred_sync=True, **quorums)
        await writer.do("append", ledger_id=deferred, entries=ENTRIES)
        assert await writer.do("force", ledger_id=deferred) == len(ENTRIES) - 1
        assert await other.do("recover", ledger_id=deferred) == ENTRIES


async def test_a_log_of_an_earlier_version_is_taken_over_and_refused_to_it_from_then_on(mixed: Mixed) -> None:
    """It lists ledgers in a format that the earlier version doesn't know."""
    assert mixed.software["today"].has_logs
    if not mixed.software["old"].has_logs:
        return
    async with mixed.clients("old", "today") as (old, today):
        everybody = {"ensemble": ENSEMBLES["striped over all"], "write_quorum": 3, "ack_quorum": 2}
        assert await old.do("open_log", name="orders", roll_entries=3, **everybody) == 0
        assert await old.do("append_to_log", name="orders", entries=ENTRIES[:10]) == 10
        assert await today.do("open_log", name="orders", **everybody) == 10
        with pytest.raises(RemoteError, match="LogFencedError"):
            await old.do("append_to_log", name="orders", entries=["late"])
        assert await today.do("append_to_log", name="orders", entries=ENTRIES[10:20]) == 20
        await today.do("close_log", name="orders")
        assert await today.do("read_log", name="orders") == ENTRIES[:20]
        for call in ({"do": "read_log"}, {"do": "open_log", **everybody}):
            with pytest.raises(RemoteError, match=r"list of log orders has format version 2, .* upgrade it"):
                await old.do(call.pop("do"), name="orders", **call)


@pytest.mark.parametrize(("writer_age", "other_age"), [("old", "today"), ("today", "old")])
async def test_a_writer_that_died_is_followed_by_one_of_the_other_version(
    mixed: Mixed, writer_age: str, other_age: str
) -> None:
    async with mixed.clients(other_age) as (other,):
        writer = await RemoteClient.start(mixed.software[writer_age], mixed.uri)
        ledger_id = await writer.do("create", ensemble=ENSEMBLES["striped over all"], write_quorum=3, ack_quorum=2)
        await writer.do("append", ledger_id=ledger_id, entries=ENTRIES)
        await writer.kill()
        assert await other.do("state", ledger_id=ledger_id) == "OPEN"
        assert await other.do("recover", ledger_id=ledger_id) == ENTRIES
        assert await other.do("state", ledger_id=ledger_id) == "CLOSED"


@pytest.mark.parametrize(
    ("writer_age", "other_age"), [("old", "today"), pytest.param("today", "old", marks=pytest.mark.exhaustive)]
)
async def test_bookies_are_upgraded_and_downgraded_under_a_writer(
    mixed: Mixed, writer_age: str, other_age: str
) -> None:
    """One after the other, each on its own data, while a ledger that spans them all is written, and one is open."""
    everybody = ENSEMBLES["striped over all"]
    async with mixed.clients(writer_age, other_age) as (writer, other):
        before = await writer.do("create", ensemble=everybody, write_quorum=4, ack_quorum=4)
        await writer.do("append", ledger_id=before, entries=ENTRIES)
        ledger_id = await writer.do("create", ensemble=everybody, write_quorum=3, ack_quorum=2)
        written: list[str] = []
        for bookie, age in (("old-1", "today"), ("today-1", "old"), ("old-1", "old"), ("today-1", "today")):
            await writer.do("append", ledger_id=ledger_id, entries=ENTRIES)
            await mixed.replace(bookie, age)
            await writer.do("append", ledger_id=ledger_id, entries=[f"after {bookie} became {age}"])
            written += [*ENTRIES, f"after {bookie} became {age}"]
        assert await other.do("recover", ledger_id=before) == ENTRIES
        assert await other.do("recover", ledger_id=ledger_id) == written
        assert await writer.do("read", ledger_id=ledger_id) == written


@pytest.mark.parametrize("age", ["old", "today"])
async def test_a_status_that_a_client_does_not_know_costs_that_bookie_and_nothing_else(
    mixed: Mixed, tmp_path: Path, age: str
) -> None:
    """A newer bookie may have more of them. Its writers go on without it, and its readers read elsewhere."""
    name = f"future-{age}"
    port = free_port()
    bookie = BookieProcess(name, tmp_path / name, mixed.uri, advertised_address=f"127.0.0.1:{port}")
    async with mixed.metadata() as (store, root):
        await bookie.start(mixed.software["today"], store, root)
    try:
        async with FromTheFuture(port, bookie.address) as future, mixed.clients(age, "today") as (client, other):
            ensemble = [name, "old-1", "today-1"]
            readable = await client.do("create", ensemble=ensemble, write_quorum=3, ack_quorum=3)
            await client.do("append", ledger_id=readable, entries=ENTRIES)
            await client.do("close", ledger_id=readable)
            written = await client.do("create", ensemble=ensemble, write_quorum=3, ack_quorum=2)
            await client.do("append", ledger_id=written, entries=ENTRIES)

            future.opcodes = {ADD}
            await client.do("append", ledger_id=written, entries=ENTRIES)
            await eventually(lambda: future.answered[ADD], "it answers too: the others' acknowledgements were enough")
            await client.do("append", ledger_id=written, entries=ENTRIES)

            future.opcodes = {READ}
            async with asyncio.timeout(DEADLINE_S):
                while not future.answered[READ]:  # a reader begins with any of the three
                    assert await client.do("read", ledger_id=readable) == ENTRIES
            future.opcodes = set()
            assert await other.do("recover", ledger_id=written) == 3 * ENTRIES
    finally:
        await bookie.stop()


async def test_an_old_writer_leaves_a_bookie_that_is_to_leave(mixed: Mixed, tmp_path: Path) -> None:
    """It refuses entries, by a status that every version knows: its writers put another in its place."""
    leaver = BookieProcess("leaver", tmp_path / "leaver", mixed.uri)
    async with mixed.metadata() as (store, root):
        await leaver.start(mixed.software["today"], store, root)
    try:
        async with mixed.metadata() as (store, root), mixed.clients("old", "today") as (writer, other):
            ledger_id = await writer.do("create", ensemble=["leaver", "old-1", "today-1"], write_quorum=3, ack_quorum=3)
            await writer.do("append", ledger_id=ledger_id, entries=ENTRIES)
            drains = Drains(store, root, real_runtime())
            await drains.begin("leaver")

            async def refuses() -> bool:
                drain = await drains.read("leaver")
                return drain is not None and drain.refuses

            await eventually(refuses)
            await writer.do("append", ledger_id=ledger_id, entries=ENTRIES)
            await writer.do("close", ledger_id=ledger_id)
            assert await other.do("read", ledger_id=ledger_id) == 2 * ENTRIES
            *_, last = await other.do("fragments", ledger_id=ledger_id)
            assert "leaver" not in last
    finally:
        await leaver.stop()
