"""The local cluster, on real processes: its life, its failures, and every acknowledged entry after kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest
from tests.command import PRELOADED, environment
from tests.conftest import alive
from tests.waiting import eventually

import bkpy
from bkpy.admin.decommission import Decommission
from bkpy.admin.drain import BookieDrain
from bkpy.client.client import replication_context
from bkpy.config.loading import load_bookie_settings
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ConfigError, IdentityError, NotEnoughBookiesError
from bkpy.local import LocalCluster
from bkpy.local.cluster import LocalBookie
from bkpy.local.process import accepts_connections, poll, port_is_free

PATIENCE_S = 60.0


async def write(cluster: LocalCluster, payloads: list[bytes]) -> int:
    """A closed ledger with these entries, all of them on every bookie."""
    async with bkpy.connect(cluster.connect_string) as client, await client.create_ledger(ack_quorum=3) as writer:
        await writer.append_batch(payloads)
        return writer.ledger_id


async def read(cluster: LocalCluster, ledger_id: int) -> list[bytes]:
    async with bkpy.connect(cluster.connect_string) as client:
        reader = await client.open_ledger(ledger_id)
        return [entry.data async for entry in reader.read()]


async def registered(cluster: LocalCluster) -> set[str]:
    async with bkpy.connect(cluster.connect_string) as client:
        return set(client.bookies)


async def test_what_a_cluster_shows_of_itself(cluster: LocalCluster) -> None:
    assert cluster.connect_string == f"zk://{cluster.zookeeper.address}/ledgers"
    assert [bookie.id for bookie in cluster.bookies] == ["bookie-1", "bookie-2", "bookie-3"]
    for part in (*cluster.bookies, cluster.zookeeper):
        assert part.pid is not None
        host, _, port = part.address.partition(":")
        assert await accepts_connections(host, int(port))
        assert part.directory.is_dir()
        assert part.log_path.is_file()
    assert await registered(cluster) == {bookie.id for bookie in cluster.bookies}


@pytest.mark.scenario(55)
async def test_a_killed_bookie_comes_back_at_its_address_with_its_data(cluster: LocalCluster) -> None:
    ledger_id = await write(cluster, [b"a", b"b", b"c"])
    bookie = cluster.bookies[0]
    address, pid = bookie.address, bookie.pid
    await bookie.kill()
    assert bookie.pid is None
    assert bookie.exit_status == -signal.SIGKILL
    await bookie.start()
    assert bookie.address == address
    assert bookie.pid not in (None, pid)
    assert bookie.id in await registered(cluster)
    for other in cluster.bookies[1:]:
        await other.kill()  # so that the reader has nobody else to ask
    try:
        assert await read(cluster, ledger_id) == [b"a", b"b", b"c"]
    finally:
        await cluster.start()
    assert await registered(cluster) == {bookie.id for bookie in cluster.bookies}


async def test_a_stopped_bookie_exits_cleanly_and_is_no_longer_registered(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[1]
    await bookie.stop()
    assert bookie.exit_status == 0
    assert bookie.id not in await registered(cluster)
    await bookie.start()
    await bookie.start()  # no effect
    assert bookie.id in await registered(cluster)


async def test_a_suspended_bookie_keeps_its_process_and_goes_on(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[2]
    pid = bookie.pid
    async with (
        bkpy.connect(cluster.connect_string, add_timeout_s=60.0) as client,
        await client.create_ledger() as writer,
    ):
        assert await writer.append(b"with all three") == 0
        bookie.suspend()
        try:
            assert await writer.append(b"two of three are an ack quorum") == 1
        finally:
            bookie.resume()
        assert await writer.append(b"and go on") == 2
    assert bookie.pid == pid


async def test_zookeeper_has_the_same_methods(cluster: LocalCluster) -> None:
    server = cluster.zookeeper
    ledger_id = await write(cluster, [b"before"])
    address = server.address
    await server.kill()
    assert server.pid is None
    await server.start()
    assert server.address == address
    server.suspend()
    server.resume()
    assert await read(cluster, ledger_id) == [b"before"]

    async def all_back() -> bool:
        return await registered(cluster) == {bookie.id for bookie in cluster.bookies}

    assert await poll(all_back, PATIENCE_S)


async def test_a_bookie_that_can_not_start_shows_its_log(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    await bookie.stop()
    host, _, port = bookie.address.partition(":")
    squatter = await asyncio.start_server(lambda reader, writer: writer.close(), host, int(port))
    try:
        with pytest.raises(BookieUnavailableError, match="last lines of its log") as caught:
            await bookie.start()
        assert bookie.id in str(caught.value)
        assert "in use" in str(caught.value)
        assert bookie.pid is None
    finally:
        squatter.close()
        await squatter.wait_closed()
    await bookie.start()


async def test_settings_reach_the_bookies_and_mistakes_are_refused(tmp_path: Path) -> None:
    config = {"journal_max_size_mb": 3, "ledger_directories": ["one", "two"], "scrub_interval_s": None}
    for value in (["x"], None):
        with pytest.raises(ConfigError, match="config: unknown setting jornal_directories; the nearest"):
            LocalCluster(tmp_path, config={"jornal_directories": value})
    with pytest.raises(ConfigError, match="listen is chosen by the cluster"):
        LocalCluster(tmp_path, config={"listen": "127.0.0.1:1"})
    with pytest.raises(BookieUnavailableError, match="journal_max_size_mb"):
        await LocalCluster(tmp_path, bookies=1, config={"journal_max_size_mb": -1}).start()
    with pytest.raises(ConfigError, match="65536 is no port"):
        LocalCluster(tmp_path, port=65536)
    # The failed start has left nothing running.
    async with LocalCluster(tmp_path, bookies=1, config=config) as cluster:
        directory = cluster.bookies[0].directory
        settings = (directory / "bookie.toml").read_text()
        assert "journal_max_size_mb = 3\n" in settings
        assert "scrub_interval_s" not in settings
        assert (directory / "one").is_dir()
        assert (directory / "two").is_dir()


async def test_one_directory_is_used_by_one_cluster(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigError, match="another process runs a cluster in"):
        await LocalCluster(cluster.directory, bookies=0).start()
    assert await registered(cluster) == {bookie.id for bookie in cluster.bookies}


async def test_a_cancelled_start_leaves_nothing_running(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    starting = asyncio.ensure_future(cluster.start())

    async def has_bookie() -> bool:
        return any(bookie.pid is not None for bookie in cluster.bookies)

    assert await poll(has_bookie, PATIENCE_S)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    assert all(part.pid is None for part in (*cluster.bookies, cluster.zookeeper))


PARENT = """\
import asyncio, sys
from bkpy.local import LocalCluster

async def main():
    async with LocalCluster(sys.argv[1], bookies=1, config={"journal_max_size_mb": 4}) as cluster:
        print(*(part.pid for part in (*cluster.bookies, cluster.zookeeper)), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_the_children_die_with_their_parent_and_the_directory_is_free(tmp_path: Path) -> None:
    script, directory = tmp_path / "parent.py", tmp_path / "cluster"
    script.write_text(PARENT)
    parent = PRELOADED.popen([str(script), str(directory)], env=environment(None))
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.communicate()

    async def start_again() -> None:
        async with LocalCluster(directory, bookies=1) as cluster:
            assert cluster.bookies[0].pid not in pids

    asyncio.run(start_again())
    assert not any(alive(pid) for pid in pids)


@pytest.mark.exhaustive
async def test_it_grows_and_its_bookies_are_the_same_objects_after_stop_and_start(tmp_path: Path) -> None:
    """Nothing listens in between. Another object finds everything, and chooses another port for one that was taken."""
    cluster = LocalCluster(tmp_path, bookies=1)
    async with cluster:
        with pytest.raises(NotEnoughBookiesError):
            await write(cluster, [b"needs three"])
        await cluster.add_bookie()
        added = await cluster.add_bookie()
        assert (added.id, added.pid is not None) == ("bookie-3", True)
        ledger_id = await write(cluster, [b"x", b""])
        bookies, connect_string = cluster.bookies.copy(), cluster.connect_string
        addresses = {bookie.id: bookie.address for bookie in bookies}
        ports = [cluster.zookeeper.port, *(bookie.port for bookie in bookies)]
        assert not any(port_is_free(port) for port in ports)
    assert all(part.pid is None for part in (*bookies, cluster.zookeeper))
    assert all(port_is_free(port) for port in ports)
    async with cluster:
        assert all(bookie.pid is not None for bookie in bookies)
        assert ({bookie.id: bookie.address for bookie in bookies}, cluster.moved) == (addresses, {})
        assert (cluster.bookies, cluster.connect_string) == (bookies, connect_string)
        assert await read(cluster, ledger_id) == [b"x", b""]
        await added.kill()
        assert not await accepts_connections("127.0.0.1", added.port)
        await added.start()
    taken = bookies[0].port
    squatter = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", taken)
    try:
        async with LocalCluster(tmp_path, bookies=1) as again:
            assert again.bookies[0].port != taken
            assert again.moved == {"bookie-1": taken}
            assert [bookie.address for bookie in again.bookies[1:]] == [bookie.address for bookie in bookies[1:]]
            assert again.connect_string == connect_string
            assert await read(again, ledger_id) == [b"x", b""]
    finally:
        squatter.close()


@pytest.mark.exhaustive
@pytest.mark.scenario(60)
async def test_a_decommissioned_bookie_is_left_out_and_its_name_is_not_given_again(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, bookies=2)
    async with cluster:
        async with bkpy.connect(cluster.connect_string) as client:
            drain = BookieDrain(replication_context(client), "bookie-1", RecoverySettings())
            await drain.begin()
            await eventually(drain.look, until=lambda found: found.refuses)
            gone = Decommission(replication_context(client), "bookie-1", RecoverySettings(), lost=False)
            assert (await gone.run(lambda looked: None)).scan.clear
        retired = cluster.bookies[0]
        await retired.stop()
        with pytest.raises(IdentityError, match="was decommissioned"):
            await retired.start()
        await cluster.start()  # the rest
        await check_without_first(cluster)
    async with LocalCluster(tmp_path, bookies=2) as again:
        await check_without_first(again)


async def check_without_first(cluster: LocalCluster) -> None:
    assert [bookie.id for bookie in cluster.bookies] == ["bookie-2", "bookie-3"]
    assert cluster.retired == ["bookie-1"]
    assert await registered(cluster) == {"bookie-2", "bookie-3"}


@pytest.mark.parametrize("name", ["plain", "\U0001f4c1", "\x7f", 'a"b\\n', "\u00e9"])
def test_a_bookies_settings_name_its_directories_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    cluster = LocalCluster(tmp_path / name, 1)
    path = cluster.write_config(LocalBookie(cluster, "bookie-1", 3181))
    settings = load_bookie_settings(str(path), {}, {})
    assert settings.journal_directories == [str(tmp_path / name / "bookie-1" / "journal")]
    assert settings.ledger_directories == [str(tmp_path / name / "bookie-1" / "ledgers")]


@pytest.mark.parametrize("given", ["one,two", "one, two", ["one", "two"], (Path("one"), "two")])
def test_directories_are_a_list_or_have_commas_between_them(tmp_path: Path, given: object) -> None:
    """As texts were, each letter was a directory: of an absolute path the first is /."""
    cluster = LocalCluster(tmp_path, 1, {"journal_directories": given, "ledger_directories": "x"})
    bookie = LocalBookie(cluster, "bookie-1", 3181)
    settings = load_bookie_settings(str(cluster.write_config(bookie)), {}, {})
    expected = [[str(bookie.directory / name) for name in names] for names in (["one", "two"], ["x"])]
    assert [settings.journal_directories, settings.ledger_directories] == expected
    assert [str(path) for path in cluster.directories_of(bookie)] == [*expected[0], *expected[1]]


@pytest.mark.parametrize("given", [5, {"a": "b"}, ["a", 5]])
def test_what_is_no_list_of_directories_is_refused(tmp_path: Path, given: object) -> None:
    with pytest.raises(ConfigError, match="config: ledger_directories must be a list of directories, not"):
        LocalCluster(tmp_path, 1, {"ledger_directories": given})


@pytest.mark.parametrize(("full", "named"), [("cluster.json.new", "cluster.json"), ("zookeeper/zoo.cfg",) * 2])
async def test_a_full_disk_is_told_with_the_file(tmp_path: Path, full: str, named: str) -> None:
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / full).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        await LocalCluster(tmp_path).start()
    assert raised.value.filename == str(tmp_path / named)


def test_a_full_disk_is_told_with_the_file_of_the_bookies_settings(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1)
    bookie = LocalBookie(cluster, "bookie-1", 3181)
    bookie.directory.mkdir()
    bookie.config_path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        cluster.write_config(bookie)
    assert raised.value.filename == str(bookie.config_path)


@pytest.mark.parametrize("name", ["journal_directories", "ledger_directories"])
def test_a_directory_that_all_bookies_would_share_is_refused(tmp_path: Path, name: str) -> None:
    shared = str(tmp_path / "shared")
    cluster = LocalCluster(tmp_path / "cluster", 2, {name: shared})
    cluster.bookies[:] = [LocalBookie(cluster, f"bookie-{i}", 3180 + i) for i in (1, 2)]
    with pytest.raises(ConfigError, match=f"config: {name} has {shared}, which all bookies would share"):
        cluster.write_config(cluster.bookies[0])
    del cluster.bookies[1]
    assert shared in cluster.write_config(cluster.bookies[0]).read_text()


@pytest.mark.parametrize("content", ["", "\0" * 80, '{"zookeeper_port": 11001, "boo'])
async def test_a_damaged_file_of_ports_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    """As a power cut may have left it."""
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ConfigError, match=r"ports is damaged: .* Remove it, .* \[file .*cluster\.json\]"):
        await LocalCluster(tmp_path).start()
