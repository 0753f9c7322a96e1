"""The bookie's process: start, stop, identity, registration, metrics, settings."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.command import PRELOADED, as_json, environment, start
from tests.command import bkpy as bkpy_
from tests.conftest import run_elsewhere
from tests.hooks import children_started_by
from tests.waiting import eventually

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import free_port
from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime

DEADLINE_S = 60


def bookie_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A bookie that is expected to refuse to start."""
    return bkpy_command("bookie", "run", *arguments, **environment)


def settings(cluster: LocalCluster, directory: Path, **others: object) -> str:
    """A configuration file for one more bookie."""
    values = {
        "metadata_uri": cluster.connect_string,
        "bookie_id": "another",
        "listen": f"127.0.0.1:{free_port()}",
        "journal_directories": [str(directory / "journal")],
        "ledger_directories": [str(directory / "ledgers")],
        **others,
    }
    path = directory / "bookie.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return str(path)


async def registered(cluster: LocalCluster) -> list[str]:
    store, root = await connect_store(cluster.connect_string, real_runtime())
    try:
        return [name for name in await store.children(f"{root}/available") if name != "readonly"]
    finally:
        await store.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one bookie; a test that stops a part of it starts it again."""
    config = {"session_timeout_s": 4.0, "metrics_port": free_port(), "checkpoint_interval_s": 3600}
    local = LocalCluster(tmp_path_factory.mktemp("small"), bookies=1, config=config)
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())


async def test_stopping_deregisters_and_exits_with_zero(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    assert bookie.id in await registered(cluster)
    for starts in (None, PRELOADED.bookie):  # the second one to be stopped is started as it is for users
        await bookie.stop()
        assert bookie.exit_status == 0
        assert bookie.id not in await registered(cluster)
        with children_started_by(starts):
            await bookie.start()
        assert bookie.id in await registered(cluster)


async def test_stopping_without_zookeeper_is_a_clean_stop_too(small: LocalCluster) -> None:
    bookie = small.bookies[0]
    logged = len(bookie.log_path.read_text())
    await small.zookeeper.kill()
    await bookie.stop()
    assert bookie.exit_status == 0
    await small.zookeeper.start()
    await bookie.start()
    assert bookie.log_path.read_text()[logged:].count(", 0 bytes of journal") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bookie_that_waits_for_zookeeper_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """And a hangup is remembered until the bookie serves."""
    uri = f"--metadata_uri=zk://127.0.0.1:{free_port()}/ledgers"
    directories = [f"--{name}_directories={tmp_path / name}" for name in ("journal", "ledger")]
    words = ["bookie", "run", uri, f"--listen=127.0.0.1:{free_port()}", *directories]
    with start(*words, uri=None) as running:
        assert running.stderr is not None
        try:
            assert b"looks for its metadata" in running.stderr.readline()
            running.send_signal(signal.SIGHUP)
            assert b"SIGHUP: the bookie starts, and reads its files again when it serves" in running.stderr.readline()
            running.send_signal(number)
            told = running.stderr.read()
            assert running.wait(DEADLINE_S) == 0, told
            assert told.endswith(b" stopped before it served\n")
        finally:
            running.kill()
    assert not any(tmp_path.iterdir())


async def test_a_hangup_ends_no_bookie(small: LocalCluster) -> None:
    bookie = small.bookies[0]
    assert bookie.pid is not None
    os.kill(bookie.pid, signal.SIGHUP)
    said = ": no setting has changed"
    await eventually(bookie.log_path.read_text, "the bookie has handled the signal", until=lambda log: said in log)
    assert bookie.id in await registered(small)


async def test_a_bookie_reads_its_settings_again_without_a_restart(small: LocalCluster) -> None:
    bookie = small.bookies[0]
    assert bookie.pid is not None
    before = bookie.config_path.read_text()
    try:
        bookie.config_path.write_text('log_level = "debug"\nscrub_bytes_per_s = 7\n' + before)
        os.kill(bookie.pid, signal.SIGHUP)
        taken = "reloaded: scrub_bytes_per_s from "
        await eventually(bookie.log_path.read_text, "the bookie has read it", until=lambda log: taken in log)
        words = "bookie", "reload", "--bookie", bookie.id
        bookie.config_path.write_text("scrub_bytes_per_s = 8\nconnections_max = 12345\n" + before)
        report = await asyncio.to_thread(as_json, *words, uri=small.connect_string)
        assert {change["setting"] for change in report["changed"]} == {"log_level", "scrub_bytes_per_s"}
        assert [change["setting"] for change in report["needs_restart"]] == ["connections_max"]
        shown = await asyncio.to_thread(
            bkpy_, "bookie", "scrub", "--bookie", bookie.id, "--json", uri=small.connect_string
        )
        assert json.loads(shown.stdout)["bytes_per_s"] == 8
        bookie.config_path.write_text("scrub_bytes_per_s = -1\n" + before)
        refused = await asyncio.to_thread(bkpy_, *words, uri=small.connect_string, status=1)
        assert b"scrub_bytes_per_s = -1" in refused.stderr
        os.kill(bookie.pid, signal.SIGHUP)
        said = "failed to reload the settings: "
        await eventually(bookie.log_path.read_text, "the bookie has refused it", until=lambda log: said in log)
    finally:
        bookie.config_path.write_text(before)
    assert bookie.id in await registered(small)


@pytest.mark.scenario(56)
async def test_registers_again_after_its_session_was_lost(cluster: LocalCluster) -> None:
    """ZooKeeper ends the session of a bookie that was suspended for longer than the session timeout."""
    bookie = cluster.bookies[1]
    bookie.suspend()
    try:
        await eventually(lambda: registered(cluster), until=lambda ids: bookie.id not in ids, pause_s=0.1)
    finally:
        bookie.resume()
    await eventually(lambda: registered(cluster), until=lambda ids: bookie.id in ids, pause_s=0.1)
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await client.create_ledger(ack_quorum=3)
        assert await writer.append(b"x") == 0
        await writer.close()
    log = bookie.log_path.read_text()
    assert "has expired; the bookie will register again" in log
    assert "connected to the metadata store again" in log


def page(bookie_port: int, path: str) -> tuple[int, dict[str, object]]:
    """The status and the JSON of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie_port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())


async def test_a_bookie_says_whether_it_lives_and_whether_it_is_ready(small: LocalCluster) -> None:
    (bookie,) = small.bookies
    port = tomllib.loads(bookie.config_path.read_text())["metrics_port"]
    ready = {"bookie_id": bookie.id, "live": True, "ready": True, "why": None}
    await eventually(lambda: page(port, "/readyz"), until=lambda found: found == (200, ready))
    assert page(port, "/healthz") == (200, ready)
    assert bkpy_command("bookie", "health", "--ready", "--admin", f"127.0.0.1:{port}").stdout.endswith(b"is ready\n")
    await small.zookeeper.kill()
    await eventually(lambda: page(port, "/readyz"), until=lambda found: found[0] != 200)
    away = {**ready, "ready": False, "why": "the metadata store is away"}
    assert page(port, "/readyz") == (503, away)
    assert page(port, "/healthz") == (200, away)
    told = bkpy_command("bookie", "health", BKPY_METRICS_PORT=str(port))
    assert told.stdout.decode() == f"bookie {bookie.id} is alive, but not ready: the metadata store is away\n"
    assert told.returncode == 0
    assert bkpy_command("bookie", "health", "--ready", BKPY_METRICS_PORT=str(port)).returncode == 1
    await small.zookeeper.start()
    await eventually(lambda: page(port, "/readyz"), until=lambda found: found == (200, ready))
    await bookie.stop()
    refused = bkpy_command("bookie", "health", BKPY_METRICS_PORT=str(port))
    assert refused.returncode == 1
    assert f"no bookie answers at 127.0.0.1:{port}" in refused.stderr.decode()
    await bookie.start()


def bkpy_command(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return PRELOADED.run(words, stdin=b"", env={**environment(None), **variables}, timeout_s=DEADLINE_S)


def test_who_asks_a_bookie_that_is_no_bookie_or_none_is_told(zookeeper: ZooKeeperServer) -> None:
    assert b"which bookie?" in bkpy_command("bookie", "health").stderr
    nowhere = bkpy_command("bookie", "health", "--admin", "nowhere")
    assert (nowhere.returncode, b"--admin" in nowhere.stderr) == (1, True)
    other = bkpy_command("bookie", "health", "--admin", zookeeper.connect_string)
    assert other.returncode == 1
    assert b"Traceback" not in other.stderr


async def test_metrics_count_what_was_done(small: LocalCluster) -> None:
    bookie = small.bookies[0]
    # The auditor's first check of copies may come as late as now, and would read the ledger too.
    await asyncio.to_thread(bkpy_, "autorecovery", "disable", uri=small.connect_string)
    await bookie.stop()
    await bookie.start()  # they count from there
    async with bkpy.connect(small.connect_string) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append_batch([b"x" * 100] * 500)
        await writer.append(b"y")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([e async for e in reader.read()]) == 501
    port = tomllib.loads(bookie.config_path.read_text())["metrics_port"]
    page = await asyncio.to_thread(
        lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).read().decode()
    )
    found = {
        (sample.name, sample.labels.get("operation")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert found["bkpy_bookie_add_entries_total", None] == 501
    assert found["bkpy_bookie_add_bytes_total", None] == 500 * 132 + 33
    assert found["bkpy_bookie_read_bytes_total", None] == 500 * 132 + 33
    assert found["bkpy_bookie_request_seconds_count", "add"] == 2
    assert found["bkpy_bookie_request_seconds_count", "read"] >= 1
    assert found["bkpy_bookie_journal_group_frames_count", None] >= 2
    assert found["bkpy_bookie_memtable_bytes", None] > 500 * 132
    assert found["bkpy_bookie_damage_total", None] == 0
    assert f'bkpy_build_info{{version="{bkpy.__version__}"}} 1.0' in page.splitlines()
    await asyncio.to_thread(bkpy_, "autorecovery", "enable", uri=small.connect_string)


def test_an_unknown_setting_is_refused_with_the_nearest(cluster: LocalCluster, tmp_path: Path) -> None:
    done = bookie_run("--config", settings(cluster, tmp_path, journal_max_size=1))
    assert done.returncode != 0
    assert "journal_max_size" in done.stderr.decode()
    assert "journal_max_size_mb" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_bookie_logs_names_that_the_next_version_refuses(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = cluster.connect_string.replace("/ledgers", "/nowhere")
    file = settings(cluster, tmp_path, journal_runs_in_place=False, block_bytes=1000)
    done = bookie_run("--config", file, "--newcomers-max=5", BKPY_METADATA_URI=uri)
    lines = done.stderr.decode().splitlines()
    for line, words in zip(
        lines,
        (
            f"file {file}: setting journal_runs_in_place is called journal_as_entry_log now; the next",
            f"file {file}: setting block_bytes has become internal; the next",
            "flag: setting newcomers_max is called new_connections_max now and has become internal; the next",
        ),
        strict=False,
    ):
        assert f" WARNING bkpy.bookie: {words} minor version refuses it" in line


def test_a_cluster_that_is_not_there(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = cluster.connect_string.replace("/ledgers", "/nowhere")
    done = bookie_run("--config", settings(cluster, tmp_path), BKPY_METADATA_URI=uri)
    assert done.returncode == 1
    assert "bkpy cluster init" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_port_that_is_taken(cluster: LocalCluster, tmp_path: Path) -> None:
    done = bookie_run("--config", settings(cluster, tmp_path), "--listen", cluster.bookies[0].address)
    assert done.returncode == 1
    assert cluster.bookies[0].address in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_all_that_a_bookie_says_can_be_json(cluster: LocalCluster, tmp_path: Path) -> None:
    config = settings(cluster, tmp_path, log_format="json", checkpoint_intervall_s=1.0)
    done = bookie_run("--config", config, "--listen", cluster.bookies[0].address)
    assert "unknown setting" in done.stderr.decode()  # before it is known how to log
    config = settings(cluster, tmp_path, log_format="json", tick_s=1.0)  # an internal one, with a notice
    done = bookie_run("--config", config, "--listen", cluster.bookies[0].address)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["bookie"] for line in lines} == {"another"}
    assert "tick_s" in lines[0]["message"]
    assert lines[-1]["level"] == "CRITICAL"
    assert cluster.bookies[0].address in lines[-1]["message"]
    assert done.returncode == 1


def test_what_a_command_says_that_runs_for_long_can_be_json(cluster: LocalCluster) -> None:
    uri = cluster.connect_string
    done = bkpy_command("autorecovery", "run", "--connect", uri, "--metrics_listen", "1.2.3.4", "--metrics_port", "1",
                        BKPY_LOG_FORMAT="json")  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "CRITICAL"
    assert "1.2.3.4" in json.loads(line)["message"]
    assert done.returncode == 1


def test_directories_that_are_in_use(cluster: LocalCluster, tmp_path: Path) -> None:
    owner = cluster.bookies[0].directory
    taken = {
        "bookie_id": cluster.bookies[0].id,
        "journal_directories": [str(next(p for p in owner.iterdir() if "journal" in p.name))],
        "ledger_directories": [str(next(p for p in owner.iterdir() if "ledger" in p.name))],
    }
    done = bookie_run("--config", settings(cluster, tmp_path, **taken))
    assert done.returncode == 1
    assert "use" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.scenario(53)
async def test_an_empty_disk_under_a_known_id_is_refused(small: LocalCluster, tmp_path: Path) -> None:
    """A bookie that comes back without its data would deny what it has acknowledged."""
    bookie = small.bookies[0]
    await bookie.stop()
    moved = []
    for path in bookie.directory.iterdir():
        if path.is_dir():
            moved.append((path, path.rename(tmp_path / f"moved-{path.name}")))
    assert len(moved) == 2
    with pytest.raises(bkpy.BookieUnavailableError, match=bookie.id):
        await bookie.start()
    told = bookie.log_path.read_text()
    assert "IdentityError" not in told  # one line for people
    assert told.rindex("looks for its metadata at zk://") < told.rindex(" opens /")  # and what took so long
    for path, kept in moved:
        shutil.rmtree(path, ignore_errors=True)
        kept.rename(path)
    await bookie.start()


@pytest.mark.scenario(53)
async def test_a_foreign_clusters_directories_are_refused(
    cluster: LocalCluster, small: LocalCluster, tmp_path: Path
) -> None:
    other = small.bookies[0]
    await other.stop()
    foreign = {
        "bookie_id": other.id,
        "journal_directories": [str(next(p for p in other.directory.iterdir() if "journal" in p.name))],
        "ledger_directories": [str(next(p for p in other.directory.iterdir() if "ledger" in p.name))],
    }
    done = await asyncio.to_thread(bookie_run, "--config", settings(cluster, tmp_path, **foreign))
    await other.start()
    assert done.returncode == 1
    assert "cluster" in done.stderr.decode()
