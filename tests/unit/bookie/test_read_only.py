"""Bookies that take no new entries: what they still do, in which order they change, and disks that fill."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import codec_of, pool_of, service_of, storage_of
from tests.waiting import eventually

from bkpy.bookie.node import BookieNode
from bkpy.client.client import Client, open_client
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import client_settings
from bkpy.errors import BookKeeperError, IdentityError, NotEnoughBookiesError
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.runtime.system import RealFiles, real_runtime
from bkpy.storage.identity import COOKIE_NAME
from bkpy.storage.space.disk_monitor import DiskMonitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.client.write.writer import LedgerWriter
    from bkpy.runtime.interfaces import DiskRuntime

pytestmark = pytest.mark.real("free space is asked for in threads")

ROOT = "/ledgers"
DEADLINE_S = 30
MIB = 1 << 20
PLENTY = 1000 * MIB


class Disks(RealFiles):
    """Real files on file systems that have as much free space as the test says, by the end of the directory's name."""

    def __init__(self) -> None:
        self.free: dict[str, int] = {}
        self.broken: set[str] = set()
        self.looks = 0
        self.threads: set[str] = set()

    def space(self, path: str) -> tuple[int, int]:
        self.threads.add(threading.current_thread().name)
        name = Path(path).name
        self.looks += 1
        if name in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self.free.get(name, PLENTY), 2 * PLENTY

    def runtime(self) -> DiskRuntime:
        return dataclasses.replace(real_runtime(), files=self)

    async def looked_at(self, times: int = 12) -> None:
        """Return after some more looks, each of which is one for each directory."""
        enough = self.looks + times
        await eventually(lambda: self.looks >= enough, "the disks are looked at")


class One:
    """One bookie, and clients of it, on a metadata store that can be away."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = MemoryStore(real_runtime())
        self.disks = Disks()
        self.session = self.tree.session()
        self.node: BookieNode
        self.clients: list[Client] = []

    def settings(self, **values: Any) -> BookieSettings:
        return BookieSettings(
            **{
                "metadata_uri": f"zk://127.0.0.1:1{ROOT}",
                "bookie_id": "one",
                "listen": "127.0.0.1:0",
                "journal_directories": [str(self.directory / "journal")],
                "ledger_directories": [str(self.directory / "ledgers0"), str(self.directory / "ledgers1")],
                "disk_free_bytes_min": 100 * MIB,
                "compaction_free_bytes_min": 50 * MIB,
                "disk_free_bytes_resume": 200 * MIB,
                "disk_check_interval_s": 0.01,
                **values,
            }
        )

    async def start(self) -> None:
        self.session = self.tree.session()
        self.node = BookieNode(self.settings(), self.session, ROOT, self.disks.runtime())
        await self.node.start()

    async def client(self) -> Client:
        client = await open_client(self.tree.session(), ROOT, real_runtime(), client_settings())
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.node.stop()

    def registered(self) -> str:
        """Where the bookie's node is: "writable", "read-only", "both" or "nowhere"."""
        names = {"available": "writable", "available/readonly": "read-only"}
        found = [name for place, name in names.items() if "one" in self.tree.node(f"{ROOT}/{place}").children]
        return "both" if len(found) == 2 else (*found, "nowhere")[0]

    def node_version(self) -> int:
        """How often the bookie's node among the writable ones was rewritten in its place."""
        return self.tree.node(f"{ROOT}/available/one").version

    def free_bytes(self) -> int:
        return int(json.loads(self.tree.node(f"{ROOT}/available/one").data)["free_bytes"])


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[One]:
    one = One(tmp_path)
    await init_cluster(one.tree.session(), ROOT)
    await one.start()
    yield one
    await one.stop()


async def small_ledger(client: Client) -> LedgerWriter:
    return await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)


async def add(client: Client, *writers: LedgerWriter, entry_id: int, flags: Flags = Flags.NONE) -> int | list[int]:
    """Send entry `entry_id` of each ledger to the bookie, in one frame; its statuses."""
    pool = pool_of(client)
    bodies = []
    for writer in writers:
        parts: list[Any] = []
        codec_of(writer).encode(parts, [b"%d" % entry_id], entry_id, 1, entry_id - 1, [0])
        bodies.append(b"".join(parts))
    ids = [writer.ledger_id for writer in writers]
    columns = [int(flags), ids, [entry_id] * len(ids), [1] * len(ids), 1, [len(body) for body in bodies]]
    answered: asyncio.Future[int | list[int]] = asyncio.get_running_loop().create_future()

    class OneAdd:
        correlation_id = pool.next_id()
        body_bytes = sum(map(len, bodies))
        ledger_ids = frozenset(ids)
        buffers = wire.encode(Op.ADD, correlation_id, m.pack(columns), bodies)

        def replied(self, index: int, head: memoryview) -> None:
            answered.set_result(m.decode_add_reply(head, len(ids)))

        def failed(self, index: int, error: BookKeeperError) -> None:
            answered.set_exception(error)

    pool.channel("one").add(OneAdd(), 0)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        return await answered


async def read_lac(client: Client, writer: LedgerWriter, flags: Flags = Flags.NONE) -> m.ReadLacReply:
    head = m.pack([int(flags), writer.ledger_id])
    reply = await pool_of(client).channel("one").call(Op.READ_LAC, head, present=writer.ledger_id, timeout_s=DEADLINE_S)
    return m.decode_read_lac_reply(reply.head)


# --- what a read-only bookie does -----------------------------------------------------------------------------------


async def test_new_entries_are_refused_with_one_status_a_frame_and_all_else_goes_on(one: One) -> None:
    client = await one.client()
    first, second = await small_ledger(client), await small_ledger(client)
    assert await add(client, first, second, entry_id=0) == Status.OK
    await one.node.set_read_only(True, "a test")
    assert await add(client, first, second, entry_id=1) == Status.READ_ONLY  # on a connection that has presented
    late = await one.client()
    for writer in (first, second):
        pool_of(late).add_key(writer.ledger_id, writer.metadata.ledger_key)
    assert await add(late, first, second, entry_id=1) == Status.READ_ONLY
    # What recoveries write, of ledgers that it has and of those that it has never seen.
    assert await add(client, first, second, entry_id=1, flags=Flags.RECOVERY) == Status.OK
    explicit = m.pack([first.ledger_id]), (codec_of(first).explicit_lac(1, 2),)
    reply = (
        await pool_of(client)
        .channel("one")
        .call(Op.WRITE_LAC, *explicit, present=first.ledger_id, timeout_s=DEADLINE_S)
    )
    assert m.reply_status(reply.head) == Status.OK
    reader = await late.open_ledger(first.ledger_id)
    assert [entry.data async for entry in reader.read()] == [b"0", b"1"]
    assert not (await read_lac(client, first)).fenced
    assert (await read_lac(client, first, Flags.RECOVERY)).fenced
    assert await add(client, first, entry_id=2, flags=Flags.RECOVERY) == Status.OK
    await one.node.set_read_only(False, "a test")
    assert await add(client, second, entry_id=2) == Status.OK
    assert await add(client, first, entry_id=3) == [Status.FENCED]


async def test_ledgers_that_it_has_never_seen_are_recovered_and_fenced_there(one: One) -> None:
    client = await one.client()
    recovered, fenced = await small_ledger(client), await small_ledger(client)
    await one.node.set_read_only(True, "a test")
    assert await add(client, recovered, entry_id=0, flags=Flags.RECOVERY) == Status.OK
    assert await add(client, recovered, entry_id=1) == Status.READ_ONLY
    await read_lac(client, fenced, Flags.RECOVERY)
    await one.node.set_read_only(False, "a test")
    assert await add(client, fenced, entry_id=0) == [Status.FENCED]


async def test_no_new_ledger_is_placed_on_it(one: One) -> None:
    client = await one.client()
    await one.node.set_read_only(True, "a test")
    await eventually(lambda: list(client.read_only_bookies) == ["one"], "the client has seen it")
    with pytest.raises(NotEnoughBookiesError, match=r"0 are available: none; 1 are read-only: one \(a test\)"):
        await small_ledger(client)
    await one.node.set_read_only(False, "a test")
    await eventually(lambda: list(client.bookies) == ["one"], "the client has seen it")
    writer = await small_ledger(client)
    assert await writer.append(b"x") == 0


async def test_the_metrics_page_says_whether_it_is_read_only(one: One) -> None:
    for read_only in (False, True, False):
        await one.node.set_read_only(read_only, "a test")
        assert f"bkpy_bookie_read_only {float(read_only)}\n" in service_of(one.node).metrics.render().decode()


async def test_the_metrics_page_says_when_a_session_was_lost(one: One) -> None:
    def lost_s() -> float:
        text = service_of(one.node).metrics.render().decode()
        return float(text.partition("\nbkpy_bookie_session_lost_seconds ")[2].split("\n")[0])

    one.session.suspend()
    one.session.resume()
    assert lost_s() == 0
    one.session.expire()
    assert lost_s() == pytest.approx(real_runtime().clock.time(), abs=60)


# --- the order of changes -------------------------------------------------------------------------------------------


async def test_entries_are_refused_before_the_registration_moves_and_taken_after_it_has_moved_back(one: One) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    one.session.suspend()
    moving = asyncio.create_task(one.node.set_read_only(True, "a test"))
    await asyncio.sleep(0)
    assert await add(client, writer, entry_id=0) == Status.READ_ONLY
    assert one.registered() == "writable"
    one.session.resume()
    await moving
    assert one.registered() == "read-only"
    one.session.suspend()
    moving = asyncio.create_task(one.node.set_read_only(False, "a test"))
    await asyncio.sleep(0)
    assert await add(client, writer, entry_id=0) == Status.READ_ONLY
    assert one.registered() == "read-only"
    one.session.resume()
    await moving
    assert one.registered() == "writable"
    assert await add(client, writer, entry_id=0) == Status.OK


async def test_it_is_read_only_as_long_as_there_is_any_reason(one: One) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    await asyncio.gather(one.node.set_read_only(True, "first"), one.node.set_read_only(True, "second"))
    for reason in ("first", "first", "a third"):
        await one.node.set_read_only(False, reason)
        assert one.registered() == "read-only"
        assert await add(client, writer, entry_id=0) == Status.READ_ONLY
    await one.node.set_read_only(False, "second")
    assert one.registered() == "writable"
    assert await add(client, writer, entry_id=0) == Status.OK


async def test_a_new_reason_while_it_is_moving_back_holds(one: One) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    await one.node.set_read_only(True, "first")
    one.session.suspend()
    back = asyncio.create_task(one.node.set_read_only(False, "first"))
    await asyncio.sleep(0)
    again = asyncio.create_task(one.node.set_read_only(True, "second"))
    await asyncio.sleep(0)
    one.session.resume()
    while not again.done():
        assert await add(client, writer, entry_id=0) == Status.READ_ONLY
    await asyncio.gather(back, again)
    assert one.registered() == "read-only"
    assert await add(client, writer, entry_id=0) == Status.READ_ONLY


@pytest.mark.thorough
async def test_a_bookie_that_has_lost_data_is_read_only_from_the_start_and_stays_so(one: One) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    assert await add(client, writer, entry_id=0) == Status.OK
    storage_of(one.node).ledgers.distrust_everything()
    await one.node.stop()
    await one.start()
    assert one.registered() == "read-only"
    await one.disks.looked_at()
    await one.node.set_read_only(False, "another reason")
    assert one.registered() == "read-only"
    late = await one.client()
    pool_of(late).add_key(writer.ledger_id, writer.metadata.ledger_key)
    assert await add(late, writer, entry_id=1) == Status.READ_ONLY
    assert await add(late, writer, entry_id=1, flags=Flags.RECOVERY) == Status.OK


# --- disks that fill ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["journal", "ledgers0", "ledgers1"])
async def test_a_bookie_is_read_only_from_one_mark_down_to_the_other_up(one: One, directory: str) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    one.disks.free[directory] = 100 * MIB
    await one.disks.looked_at()
    assert await add(client, writer, entry_id=0) == Status.OK
    one.disks.free[directory] = 100 * MIB - 1
    await eventually(lambda: one.registered() == "read-only", "the registration has moved")
    assert await add(client, writer, entry_id=1) == Status.READ_ONLY
    one.disks.free[directory] = 200 * MIB - 1
    await one.disks.looked_at()
    assert one.registered() == "read-only"
    assert await add(client, writer, entry_id=1) == Status.READ_ONLY
    one.disks.free[directory] = 200 * MIB

    async def taken() -> bool:
        return await add(client, writer, entry_id=1) == Status.OK

    await eventually(taken, "entries are taken again")
    assert one.registered() == "writable"


@pytest.mark.thorough
async def test_a_bookie_that_starts_on_a_full_disk_is_never_registered_as_writable(one: One) -> None:
    await one.node.stop()
    one.disks.free["ledgers1"] = 0
    places = []
    watch = one.tree.session().watch(f"{ROOT}/available", children=True)

    async def follow() -> None:
        async for _ in watch:
            places.append(one.registered())

    following = asyncio.create_task(follow())
    await one.start()
    await one.disks.looked_at()
    assert one.registered() == "read-only"
    watch.close()
    await following
    assert set(places) <= {"nowhere", "read-only"}


async def test_a_disk_that_fills_while_the_metadata_store_is_away_is_heeded(one: One) -> None:
    client = await one.client()
    writer = await small_ledger(client)
    one.session.suspend()
    one.disks.free["ledgers0"] = PLENTY // 2  # so that there is something to tell, which has to wait
    await one.disks.looked_at()
    one.disks.free["ledgers0"] = 0

    async def refused() -> bool:
        return await add(client, writer, entry_id=0) == Status.READ_ONLY

    await eventually(refused, "entries are refused")
    assert one.registered() == "writable"
    one.session.resume()
    await eventually(lambda: one.registered() == "read-only", "the registration has moved")


async def test_free_space_is_told_in_place_when_it_has_changed_by_much(one: One) -> None:
    assert one.free_bytes() == 2 * PLENTY  # of both ledger directories, and not of the journal's
    version = one.node_version()
    one.disks.free.update(ledgers0=PLENTY - 90 * MIB, journal=PLENTY // 2)  # of 2000 MiB, less than a twentieth
    await one.disks.looked_at()
    assert one.free_bytes() == 2 * PLENTY
    assert one.node_version() == version
    one.disks.free["ledgers0"] = PLENTY - 110 * MIB
    await eventually(lambda: one.free_bytes() == 2 * PLENTY - 110 * MIB, "it is told")
    await one.disks.looked_at()
    assert one.node_version() == version + 1


async def test_a_bookie_whose_session_ends_says_its_present_free_space_in_the_next(one: One) -> None:
    one.session.suspend()
    one.session.expire()
    one.disks.free["ledgers0"] = 300 * MIB
    await one.disks.looked_at()
    assert one.registered() == "nowhere"
    one.session.resume()
    await eventually(lambda: one.registered() == "writable", "it is registered again")
    await eventually(lambda: one.free_bytes() == PLENTY + 300 * MIB, "with its present space")


# --- the monitor alone ----------------------------------------------------------------------------------------------


def monitor_of(settings: BookieSettings, disks: Disks) -> DiskMonitor:
    """With directories that are there, as those of a bookie that runs."""
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        Path(directory).mkdir()
        (Path(directory) / COOKIE_NAME).touch()
    return DiskMonitor(settings, disks.runtime())


async def test_a_directory_has_gone_only_if_the_file_system_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks()
    settings = One(tmp_path).settings()
    monitor = monitor_of(settings, disks)
    cookie = tmp_path / "ledgers1" / COOKIE_NAME

    def can_not_tell(path: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patch:
        patch.setattr(disks, "exists", lambda path: False)
        await monitor.look()  # it is listed all the same
        patch.setattr(disks, "listdir", can_not_tell)
        await monitor.look()
    cookie.unlink()
    with pytest.raises(IdentityError, match=r"removed while the bookie ran.*ledgers1"):
        await monitor.look()
    cookie.parent.rmdir()
    with pytest.raises(IdentityError, match=r"removed while the bookie ran.*ledgers1"):
        await monitor.look()
    monitor.close()


async def test_the_monitor_takes_the_worst_of_all_directories_and_doubts_the_silent(tmp_path: Path) -> None:
    disks = Disks()
    monitor = monitor_of(One(tmp_path).settings(), disks)
    steps: list[tuple[dict[str, int], set[str], bool]] = [
        ({}, set(), False),
        ({"ledgers0": 100 * MIB}, set(), False),
        ({"ledgers0": 99 * MIB}, set(), True),
        ({"ledgers0": PLENTY, "journal": 150 * MIB}, set(), True),
        ({"ledgers0": 200 * MIB, "journal": 200 * MIB}, set(), False),
        ({}, {"ledgers1"}, True),
        ({}, set(), False),
    ]
    for free, broken, low in steps:
        disks.free, disks.broken = free, broken
        await monitor.look()
        assert monitor.low is low
        assert monitor.free_bytes == sum(
            0 if name in broken else free.get(name, PLENTY) for name in ("ledgers0", "ledgers1")
        )
    assert disks.threads == {"disk-monitor"}
    monitor.close()


async def test_the_monitor_says_what_it_waits_for_and_each_thing_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks()
    monitor = monitor_of(One(tmp_path).settings(), disks)
    caplog.set_level(logging.INFO, "bkpy.bookie")
    less = r"WARNING \d+ bytes are free in .*/%s, less than disk_free_bytes_min = \d+: new entries are refused until .*"
    silent = "ERROR failed to read the free space of .*/ledgers1, so it counts as full: .*"
    between = r"INFO \d+ bytes are free in .*/ledgers0, more than disk_free_bytes_min = .* until every directory has .*"
    steps: list[tuple[dict[str, int], set[str], list[str]]] = [
        ({}, set(), []),
        ({"ledgers0": 99 * MIB}, set(), [less % "ledgers0"]),
        ({"ledgers0": 150 * MIB}, set(), [between]),
        ({"ledgers0": 160 * MIB}, set(), []),
        ({"ledgers0": 99 * MIB}, set(), []),
        ({"ledgers0": 150 * MIB}, set(), [between]),
        ({}, set(), [r"INFO \d+ bytes or more are free in every directory"]),
        ({}, {"ledgers1"}, [silent, less % "ledgers1"]),
        ({}, {"ledgers1"}, []),
        ({}, set(), [r"INFO \d+ bytes or more are free in every directory"]),
        ({}, {"ledgers1"}, [silent, less % "ledgers1"]),
    ]
    for free, broken, told in steps:
        disks.free, disks.broken = free, broken
        caplog.clear()
        await monitor.look()
        lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
        assert len(lines) == len(told), lines
        for line, pattern in zip(lines, told, strict=True):
            assert re.match(pattern, line), line
    monitor.close()


async def test_with_a_mark_of_zero_a_bookie_is_never_read_only(tmp_path: Path) -> None:
    disks = Disks()
    monitor = monitor_of(One(tmp_path).settings(disk_free_bytes_min=0), disks)
    disks.free["journal"] = 0
    disks.broken.add("ledgers0")
    await monitor.look()
    assert not monitor.low
    monitor.close()
