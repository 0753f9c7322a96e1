"""The benches run, and what they print can be read: no figure is judged here."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from tests.command import COMMAND, PRELOADED, environment
from tests.waiting import eventually

from bkpy import connect
from bkpy.bench import ceiling, memory
from bkpy.bench.machine import machine, versions
from bkpy.bench.processor_time import REST
from bkpy.bench.workloads import Meter, Options
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATIENCE_S = 100.0
SHORT = ("--seconds", "0.2", "--outstanding", "20")
NUMBERS = ("entries_per_s", "p50_ms", "p99_ms", "p999_ms", "longest_gap_ms", "client_rss_anon_mb")


def bench(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = PRELOADED.run(["bench", "--json", *arguments], stdin=b"", env=environment(None), timeout_s=PATIENCE_S)
    shown = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert shown.returncode == status, shown.stderr
    return shown


def script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A module of benchmarks/ or benchmarks/peers/, which aren't packages."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    return __import__(name)


@pytest.mark.parametrize(
    ("workload", "api", "size", "outstanding"),
    [
        ("append", "append", 200, 20),
        ("append", "append_batch", 200, 20),
        ("read", "read", 5000, None),  # of what is written before, which is a number of bytes
        ("read", "read_blocks", 5000, 20),
    ],
)
def test_a_workload_on_a_given_cluster(
    cluster: LocalCluster, workload: str, api: str, size: int, outstanding: int | None
) -> None:
    """One read is in flight unless asked for more."""
    words = ["--connect", cluster.connect_string, "--workload", workload, "--api", api, "--size", str(size)]
    words += ["--seconds", "0.2"] if outstanding is None else SHORT
    result = json.loads(bench(*words).stdout)
    expected = {"workload": workload, "api": api, "size": size, "outstanding": outstanding or 1, "ledgers": 1}
    expected["errors"] = 0
    assert {name: result[name] for name in expected} == expected
    assert all(result[name] > 0 for name in NUMBERS)  # however few calls came back
    assert result["p50_ms"] <= result["p99_ms"] <= result["p999_ms"]
    assert result["mb_per_s"] == pytest.approx(result["entries_per_s"] * size / 1e6, abs=0.01)
    assert result["ceiling_mb_per_s"] is None
    assert result["ratio_to_ceiling"] is None
    assert result["storage_ceiling_mb_per_s"] is None
    assert result["ratio_to_storage_ceiling"] is None
    assert result["processor_time"] is None
    assert result["bookie_rss_anon_mb"] is None  # a cluster that it didn't start may be anywhere


@pytest.mark.exhaustive
def test_both_ceilings_of_appends(cluster: LocalCluster) -> None:
    result = json.loads(bench("--connect", cluster.connect_string, "--ceiling", *SHORT).stdout)
    for name in ("ceiling", "storage_ceiling"):
        assert result[f"{name}_mb_per_s"] > 0
        ratio = result["mb_per_s"] / result[f"{name}_mb_per_s"]
        assert result[f"ratio_to_{name}"] == pytest.approx(ratio, rel=0.02, abs=0.001)  # all three are rounded


def test_many_ledgers(cluster: LocalCluster) -> None:
    result = json.loads(bench("--connect", cluster.connect_string, "--ledgers", "20", *SHORT).stdout)
    assert result["ledgers"] == 20
    assert result["entries_per_s"] > 0


def test_appends_to_logs_that_roll(cluster: LocalCluster) -> None:
    uri = cluster.connect_string
    result = json.loads(bench("--connect", uri, "--log", "--roll", "0.2", "--ledgers", "2", *SHORT).stdout)
    assert (result["log"], result["roll_s"], result["ledgers"], result["errors"]) == (True, 0.2, 2, 0)
    assert result["entries_per_s"] > 0
    for wrong in (("--log", "--workload", "read"), ("--roll", "1")):
        assert "--log goes with" in bench("--connect", uri, *wrong, status=2).stderr


@pytest.mark.exhaustive
def test_reads_after_a_restart_of_a_cluster_of_its_own_and_the_ceiling(tmp_path: Path) -> None:
    words = ("--workload", "read", "--restart", "--ceiling", "--size", "10000", "--dir", str(tmp_path))
    done = bench(
        *words, "--processor-time", "--seconds", "2"
    )  # within which reads come back also where others keep the processors busy
    result = json.loads(done.stdout)
    assert result["restarted"] is True
    assert result["entries_per_s"] > 0
    assert result["bookie_rss_anon_mb"] > 0
    assert result["ratio_to_ceiling"] == pytest.approx(
        result["mb_per_s"] / result["ceiling_mb_per_s"], rel=0.02, abs=0.001
    )
    assert result["ratio_to_storage_ceiling"] is None
    assert {"client: event loop", "bookies: event loop", REST} <= {row["of"] for row in result["processor_time"]}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--restart", "--memory", "--processor-time"])
def test_what_needs_a_cluster_of_its_own_says_so(cluster: LocalCluster, option: str) -> None:
    done = bench("--connect", cluster.connect_string, "--workload", "read", option, *SHORT, status=2)
    assert option in done.stderr
    assert "without BKPY_CONNECT in the environment" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("ensemble", ["3,3,2", "2,2,2"])
def test_a_bookie_killed_under_load(tmp_path: Path, ensemble: str) -> None:
    arguments = ("--workload", "failover", "--ensemble", ensemble, "--rounds", "2", "--dir", str(tmp_path), *SHORT)
    result = json.loads(bench(*arguments).stdout)
    assert result["bookies"] == result["ensemble"][0] + 1
    assert len(result["longest_gaps_ms"]) == result["rounds"] == 2
    assert min(result["longest_gaps_ms"]) <= result["longest_gap_ms"] <= max(result["longest_gaps_ms"])
    assert result["undisturbed_gap_ms"] > 0
    assert result["entries"] > 0
    assert not list(tmp_path.iterdir())


def test_recovery_of_entries_that_nobody_knows_to_be_confirmed(cluster: LocalCluster) -> None:
    arguments = ("--workload", "recovery", "--entries", "500", "--size", "1024", "--rounds", "2")
    result = json.loads(bench("--connect", cluster.connect_string, *arguments).stdout)
    assert (result["entries"], result["unconfirmed_entries"]) == (500, 500)
    assert len(result["recoveries_ms"]) == 2
    assert result["recovery_ms"] > 0
    assert result["ms_per_entry"] == pytest.approx(result["recovery_ms"] / 500, abs=0.001)


def test_failures_go_without_what_they_do_not_heed(cluster: LocalCluster) -> None:
    for option in (("--api", "append"), ("--ceiling",), ("--processor-time",), ("--connect", cluster.connect_string)):
        assert "--workload failover goes without" in bench("--workload", "failover", *option, status=2).stderr


@pytest.mark.exhaustive
def test_the_table_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    table = script(monkeypatch, "table")
    monkeypatch.setenv("BKPY_CONNECT", "zk://127.0.0.1:1/elsewhere")  # of no account: each row has its own cluster
    monkeypatch.setattr(subprocess, "run", forked)
    shown, (row,) = table.failures([table.load("recovery")], 1)
    assert shown.row_count == 1
    assert row["name"] == "recovery of 10,000 entries of 1 KB"
    assert (row["entries"], row["unconfirmed_entries"], row["size"]) == (10_000, 10_000, 1024)
    assert row["recoveries_ms"] == [row["recovery_ms"]]


def test_the_table_of_processor_time_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    table = script(monkeypatch, "table")
    kinds = ["client: event loop", "bookies: event loop", "bookies: flush", "bookies: scrub", REST]
    rows = [{"of": kind, "user_us": 2.0, "system_us": 0.5, "waits": 1.0} for kind in kinds]
    shown = table.processor_time([{"name": "a row", "entries_per_s": 100_000.0, "processor_time": rows}])
    (cells,) = zip(*(column.cells for column in shown.columns), strict=True)
    each, none = "2.50 (0.50)", "0.00 (0.00)"
    assert cells == ("a row", each, each, none, each, none, "5.00 (1.00)", "12.50", "1.25")


def forked(command: list[str], *, env: dict[str, str], **streams: object) -> subprocess.CompletedProcess[str]:
    """A run of `python -m bkpy` whose output is wanted as text."""
    assert (command[:3], streams) == (COMMAND, {"stdout": subprocess.PIPE, "text": True, "check": False})
    done = PRELOADED.run(command[3:], stdin=b"", env=env, timeout_s=PATIENCE_S)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode())


def test_every_workload_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    workloads = script(monkeypatch, "workloads")
    modules = {path.stem for path in (BENCHMARKS / "workloads").glob("*.py")} - {"__init__"}
    assert sorted(workloads.STANDARD) == sorted(modules)
    assert len({workloads.load(name).title for name in workloads.STANDARD}) == len(modules)


def test_the_table_names_what_there_is(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "table.py"), "apends"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "no such workload: apends; there are appends" in done.stderr


def test_no_cluster_no_figures(cluster: LocalCluster) -> None:
    elsewhere = cluster.connect_string.replace("/ledgers", "/elsewhere")
    done = bench("--connect", elsewhere, *SHORT, status=1)
    assert done.stdout == ""
    assert done.stderr.startswith("bkpy: ")


def test_ceiling_of_appends_and_reads(tmp_path: Path) -> None:
    assert ceiling.appends(str(tmp_path), 100_000, copies=3, ack_quorum=2, seconds=0.05) > 0
    assert ceiling.appends(str(tmp_path), 100_000, copies=3, ack_quorum=2, seconds=0.05, stored=True) > 0
    assert ceiling.reads(str(tmp_path), in_flight=3, copies=3, seconds=0.05) > 0


def test_percentiles_are_of_the_calls_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    meter.start()
    now = 1000.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    waits = [0.001] * 97 + [0.02, 0.5, 3.0]
    for wait in waits:
        meter.count(10, now - wait)
    assert meter.entries == 10 * len(waits)
    assert meter.percentiles_ms(0.5, 0.97, 0.98, 0.99) == pytest.approx([1.0, 20.0, 500.0, 3000.0], rel=0.01)
    assert Meter().percentiles_ms(0.5) == [None]
    result = meter.result(Options("append", 100, 1, 1, (3, 3, 2), 1.0, "append"))
    assert result["p50_ms"] == pytest.approx(1.0, rel=0.01)


def test_machine_versions_and_memory_are_known(tmp_path: Path) -> None:
    found = machine(str(tmp_path))
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0
    assert found["file_system"]
    assert versions()["python"].startswith("3.")
    own = memory.rss_anon_mb(os.getpid())
    assert own is not None
    assert own > 1
    files = memory.rss_file_mb(os.getpid())
    assert files is not None
    assert files > 1


@pytest.mark.exhaustive  # a minute long
def test_memory_minute_by_minute(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "memory.py"),
        "--minutes",
        "0.02",
        "--size",
        "100",
        "--outstanding",
        "10",
    ]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path), "--json", str(tmp_path / "memory.json")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "memory.json").read_text())
    (minute,) = found["minutes"]
    names = ["client", "bookie-1", "bookie-2", "bookie-3"]
    assert list(minute) == [*names, *(f"{name}, files" for name in names)]
    assert all(1 < low <= high for low, high in minute.values())
    assert found["entries_per_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]


# --- the comparison: only what needs no download --------------------------------------------------------------------


def peer_row(name: str = "100 B, 1000 outstanding") -> dict[str, Any]:
    def side(rate: float, wait: float) -> dict[str, Any]:
        return {"entries_per_s": rate, "p50_ms": wait, "p99_ms": 2 * wait, "p999_ms": 3 * wait}

    return {
        "name": name,
        "size": 100,
        "ours": {"append": side(500_000.0, 2.0) | {"ceiling_mb_per_s": 100.0, "client_rss_anon_mb": 40.0}},
        "theirs": {"chain": side(100_000.0, 8.0) | {"client_rss_anon_mb": 200.0}},
    }


def test_rounds_become_medians_and_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    report = script(monkeypatch, "report")
    rounds = [
        {"entries_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0, "client_rss_anon_mb": rate}
        for rate in (10.0, 30.0, 11.0)
    ]
    found = report.summary(rounds)
    assert found["entries_per_s"] == 11.0
    assert found["client_rss_anon_mb"] == 30.0
    assert "ceiling_mb_per_s" not in found
    assert found["rounds"] == rounds


def test_each_call_is_compared_with_each_of_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    report = script(monkeypatch, "report")
    row = peer_row()
    row["theirs"]["batch"] = dict(row["theirs"]["chain"], entries_per_s=250_000.0)
    first, second = report.comparisons(row)
    assert (first["theirs"], first["times"], first["p99_ratio"]) == ("chain", 5.0, 0.25)
    assert (second["theirs"], second["times"]) == ("batch", 2.0)
    assert first["share_of_ceiling"] == 0.5
    speed, used = report.tables([row])
    assert speed.row_count == used.row_count == 2


@pytest.mark.parametrize(
    "line",
    [
        b'{"error": "no bookie"}\n',
        b"[1]\n",
        b"{\n",
        b'{"entries_per_s": 0.0, "calls": 0}\n',
        b'{"entries_per_s": NaN}\n',
    ],
)
def test_an_answer_without_a_figure_is_an_error(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    peer = script(monkeypatch, "peer")
    with pytest.raises(peer.PeerError):
        peer.parse_answer(line)
    assert peer.parse_answer(b'{"entries_per_s": 5.0}\n') == {"entries_per_s": 5.0}


def test_failures_become_medians_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = script(monkeypatch, "failures")
    found = failures.summary("a bookie killed", {"bkpy": [3.0, 9.0, 5.0], "BookKeeper": [50.0, 40.0]})
    assert found["median_ms"] == {"bkpy": 5.0, "BookKeeper": 45.0}
    assert failures.table([found]).row_count == 2
    with pytest.raises(failures.PeerError, match="9999 of 10000"):
        failures.check_unconfirmed(9999)


@pytest.mark.exhaustive
async def test_what_is_stored_is_verified_on_each_bookie_while_entries_are_appended_at_a_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    our_healing = script(monkeypatch, "our_healing")
    async with LocalCluster(tmp_path) as cluster, connect(cluster.connect_string) as client:
        healing = our_healing.OurHealing(client)

        async def command(line: str) -> Any:
            return await healing.command(line.split())

        assert await command("store 5 30 10000") == {"ledgers": 5}
        for bookie in cluster.bookies:
            assert await command(f"verify {bookie.id}") == {"ledgers": 5, "entries": 150}
        await command("pace 1000 100")
        lap = await eventually(lambda: command("lap"), meanwhile=IndexError)  # nothing is acknowledged yet
        assert 0 < lap["p50_ms"] <= lap["p99_ms"] <= lap["p999_ms"] <= lap["longest_ms"]
        assert (await command("rest"))["entries"] >= lap["calls"] > 0
        with pytest.raises(ValueError, match="no such command"):
            await command("drink 1")


def test_copies_made_anew_become_a_table_and_rows_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    healing = script(monkeypatch, "healing")
    lap = {"p99_ms": 2.0, "longest_ms": 9.0}
    one = {what: {"seconds": 2.0, "before": lap, "meanwhile": lap} for what in ("killed", "drained")}
    row = {"name": "data", "ledgers": 10, "entries": 5, "size": 100, "bkpy": one, "BookKeeper": one}
    assert healing.table([row]).row_count == 4
    file = tmp_path / "figures.json"
    for command, name in (("first", "data"), ("second", "other"), ("third", "data")):
        healing.save(file, {"command": command}, {**row, "name": name})
    rows = json.loads(file.read_text())["healing"]
    assert [(one["command"], one["name"]) for one in rows] == [("second", "other"), ("third", "data")]


def test_each_row_asks_for_the_same_entries_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = script(monkeypatch, "rows").ROWS
    first = rows[0]
    assert first.our_arguments("append", 1)[-4:] == ["--outstanding", "1000", "--ledgers", "1"]
    assert first.our_arguments("append_batch", 1000)[-4:] == ["--outstanding", "10", "--ledgers", "1"]
    restarted = [row for row in rows if row.restart]
    assert restarted
    assert all("--restart" in row.our_arguments("read", 1) for row in restarted)


@pytest.mark.parametrize(
    ("name", "pom", "artifact", "version"),
    [("bookkeeper", "pom.xml", "bookkeeper-server", "4.17."), ("kafka", "pom-kafka.xml", "kafka_2.13", "4.")],
)
def test_the_peers_version_is_the_one_that_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, pom: str, artifact: str, version: str
) -> None:
    peer = script(monkeypatch, "peer")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peer.cache_directory() == tmp_path / "bkpy-bench"
    assert peer.version_of(artifact, (BENCHMARKS / "peers" / pom).read_text()).startswith(version)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(peer, "javac_of_java", lambda: "javac")
    with pytest.raises(peer.PeerError, match="mvn is missing"):
        script(monkeypatch, name).fetch()
    monkeypatch.setattr(peer, "javac_of_java", lambda: None)
    with pytest.raises(peer.PeerError, match="javac is missing"):
        script(monkeypatch, name).fetch()


def test_a_further_peer_that_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    further = script(monkeypatch, "further")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script(monkeypatch, "peer").PeerError, match="go is missing"):
        further.further_peers(("nats",), tmp_path)


def test_a_round_begins_when_the_disk_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = script(monkeypatch, "disk")
    assert disk.written_bytes(str(tmp_path)) > 0
    mb = 10**6
    written = iter([0, 9 * mb, 9 * mb, 40 * mb, *[40 * mb] * 8])
    settled = asyncio.run(disk.settle(str(tmp_path), 0.05, lambda directory: next(written), 0.01))
    assert (settled.written_mb, settled.idle) == (40.0, True)
    assert len(list(written)) == 3  # five looks without a change, after three with one
    monkeypatch.setattr(disk, "WAIT_MAX_S", 0.05)
    busy = itertools.count(0, 9 * mb)
    settled = asyncio.run(disk.settle(str(tmp_path), 0.05, lambda directory: next(busy), 0.01))
    assert not settled.idle


def test_the_names_of_further_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    peer_names = script(monkeypatch, "further").peer_names
    assert peer_names("kafka,nats") == ("kafka", "nats")
    assert peer_names("nats,nats") == ("nats",)
    for text in ("", "kafka,", "Kafka", "redis"):
        with pytest.raises(argparse.ArgumentTypeError, match="there are kafka, nats"):
            peer_names(text)
    command = [sys.executable, str(BENCHMARKS / "peers" / "run.py"), "--peers", "redis"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "no such peer: 'redis'" in done.stderr


# Stands in for a peer's client: `append WAY ...` brings more a second the higher WAY is.
CLIENT = """
import json, sys
print("a library writes what it likes", flush=True)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    command, *words = line.split()
    rate = 1000.0 * int(words[0]) if command == "append" else 1.0
    print(json.dumps({"entries_per_s": rate, "p50_ms": 2.0, "p99_ms": 120.0, "p999_ms": 130.0}), flush=True)
"""


def further_row(monkeypatch: pytest.MonkeyPatch, directory: Path) -> dict[str, Any]:
    """What the file has with one further peer of one setting, whose client is that process."""
    further, peer, plan = (script(monkeypatch, name) for name in ("further", "peer", "plan"))
    monkeypatch.setattr(further, "CLOSED_S", 0.0)
    rows = {row.name: row for row in script(monkeypatch, "rows").ROWS}

    class Fast(peer.Peer):
        settings = (peer.Setting("fast", "Fast, synced", "as it comes"),)

        async def start(self) -> None:
            await self.client.start([sys.executable, "-c", CLIENT])

        def server_pids(self) -> list[int | None]:
            return [os.getpid()]

        def ways(self, row: Any) -> tuple[str, ...]:
            return ("1", "7", "3")

        def stand_in(self, row: Any) -> str | None:
            return None if row.ledgers == 1 else "one log"

        async def open(self, row: Any, setting: Any) -> None:
            await self.command("open", row.ledgers)

        async def append(self, row: Any, way: str, seconds: float) -> dict[str, Any]:
            answer: dict[str, Any] = await self.command("append", way)
            return answer

        async def kill_servers(self) -> None:
            return None

    class Memory:
        """Other tests use it as well."""

        async def fill(self) -> Any:
            return script(monkeypatch, "idle_memory").Filled(0.0, 0)

    monkeypatch.setattr(further, "IDLE_S", 0.0)  # other tests use the disk
    rest = script(monkeypatch, "rest").Rest(str(directory), Memory())

    async def measured() -> dict[str, Any]:
        peers = [Fast(directory / "fast")]
        columns = further.Further(peers, dataclasses.replace(plan.QUICK, seconds=0.1), rest)
        try:
            await columns.start()
            found = {**further.further_header(peers), "rows": []}
            for name in ("100 B, 1000 outstanding", "100 B, 1000 ledgers", "read 1 KB, from memory"):
                row = rows[name]
                await columns.prepare(row)
                await columns.round(row)
                await columns.round(row)
                found["rows"].append({**peer_row(name), "further": await columns.close(row)})
            return found
        finally:
            await columns.kill()

    found: dict[str, Any] = json.loads(json.dumps(asyncio.run(measured())))
    return found


def test_further_peers_are_columns_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = further_row(monkeypatch, tmp_path)
    assert found["further"] == {"fast": {"title": "Fast, synced", "about": "as it comes"}}
    one, many, read = (row["further"] for row in found["rows"])
    assert (one["fast"]["way"], one["fast"]["entries_per_s"], len(one["fast"]["rounds"])) == ("7", 7000.0, 2)
    assert list(one["fast"]["warm_up"]) == ["1", "7", "3"]
    assert one["fast"]["server_rss_anon_mb"] > 1
    assert "stand_in" not in one["fast"]
    assert many["fast"]["stand_in"] == "one log"
    assert read == {}
    shown = io.StringIO()
    table = script(monkeypatch, "report").further_table(found["rows"], found["further"])
    Console(file=shown, width=165).print(table)
    first, second, third = (line.split() for line in shown.getvalue().splitlines() if " append " in line)
    assert first[-5:] == ["7,000", "71.43", "2.00", "/", "120"]
    assert second[-5:] == first[-5:]
    assert third[-3:] == ["—", "—", "—"]
    assert "Fast, synced, 100 B, 1000 ledgers: one log" in shown.getvalue()


def test_the_file_without_further_peers_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    assert script(monkeypatch, "further").further_header([]) == {}
    rows = script(monkeypatch, "rows").ROWS
    assert [row.name for row in rows if row.further] == [row.name for row in rows[:7]]


@pytest.mark.parametrize("with_peers", [False, True])
def test_picture_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_peers: bool) -> None:
    row = {"name": "append <100 B>", "entries_per_s": 1000.0, "mb_per_s": 0.1, "ratio_to_ceiling": 0.5}
    found = {"date": "2026-01-02T03:04:05+00:00", "machine": machine(str(tmp_path)), "versions": versions()}
    (tmp_path / "bench.json").write_text(json.dumps({**found, "rows": [row]}))
    report = script(monkeypatch, "report")
    compared = peer_row()
    compared["comparisons"] = list(report.comparisons(compared))
    peers = {**found, "versions": {"bookkeeper": "4.17.3"}, "rows": [compared]}
    if with_peers:
        (tmp_path / "peers.json").write_text(json.dumps(peers))
    command = [sys.executable, str(BENCHMARKS / "picture.py"), "bench.json", "peers.json", "--to", "bench.svg"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    root = xml.etree.ElementTree.parse(tmp_path / "bench.svg").getroot()
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert "append <100 B>" in texts
    assert ("100 B, 1000 outstanding (append)" in texts) is with_peers
    assert ("5.0" in texts) is with_peers
    assert any("2026-01-02" in text for text in texts)


@pytest.mark.exhaustive
def test_bookies_that_were_killed_start_again_on_what_was_stored() -> None:
    result = json.loads(bench("--workload", "restart", "--entries", "2000", "--ledgers", "20").stdout)
    assert (result["entries"], result["ledgers"], result["ensemble"]) == (2000, 20, [3, 3, 2])
    assert len(result["restarts_ms"]) == 3
    assert 0 < result["restart_ms"] <= result["slowest_restart_ms"]
