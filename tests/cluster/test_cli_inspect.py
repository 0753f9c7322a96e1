"""`bkpy inspect` on the files of bookies that run and are written to, and on damaged ones."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import COMMAND, bkpy
from tests.unit.storage.support import KEY
from tests.unit.storage.tools.inspect.built import STRIPED, build

import bkpy as bkpy_library
from bkpy.cli.inspect import inspect as command
from bkpy.storage.tools.inspect.index import IndexInspection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bkpy.local import LocalCluster
    from bkpy.storage.tools.inspect.finding import Finding

WHAT = ("journal", "entry-log", "index", "marks")


def inspect(*words: object, status: int = 0) -> subprocess.CompletedProcess[bytes]:
    return bkpy("inspect", *words, status=status)


def lines(*words: object, status: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in inspect(*words, "--json", status=status).stdout.splitlines()]


def directory_of(cluster: LocalCluster, kind: str) -> Path:
    return next(path for path in cluster.bookies[0].directory.iterdir() if kind in path.name and path.is_dir())


async def test_a_bookie_that_is_written_to_is_looked_into(cluster: LocalCluster) -> None:
    where = directory_of(cluster, "ledger")
    async with bkpy_library.connect(cluster.connect_string) as client:
        writer = await client.create_ledger(ack_quorum=3)
        ended = asyncio.Event()

        async def write() -> None:
            while not ended.is_set():
                await writer.append_batch([b"x" * 1000] * 50)
                await asyncio.sleep(0.01)  # the commands have something to do as well

        writing = asyncio.ensure_future(write())
        try:
            for _ in range(3):
                for what in WHAT:
                    assert (await asyncio.to_thread(lines, what, where))[-1]["damages"] == 0
                found = await asyncio.to_thread(lines, "ledger", where, writer.ledger_id)
                assert found[-1]["damages"] == 0
        finally:
            ended.set()
            await writing
        await writer.append(b"last")
        found = await asyncio.to_thread(lines, "ledger", where, writer.ledger_id)
        (end,) = [line for line in found if line["kind"] == "end"]
        assert end["entries"] == writer.last_add_confirmed + 1
        assert end["ids_missing"] == 0
        await writer.close()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    asyncio.run(build(tmp_path, clean=True))
    return tmp_path


def test_a_bookie_is_found_by_its_settings_a_directory_or_a_file(stopped: Path) -> None:
    config = stopped / "bookie.toml"
    config.write_text(
        f'metadata_uri = "zk://127.0.0.1:1/l"\njournal_directories = ["{stopped}/journal0"]\n'
        f'ledger_directories = ["{stopped}/ledgers0"]\n'
    )
    for what in WHAT:
        by_settings = lines(what, config)
        assert by_settings == lines(what, stopped / "journal0") == lines(what, stopped / "ledgers0")
        assert by_settings[-1]["findings"] > 1
    file = next((stopped / "ledgers0").glob("*.log"))
    assert lines("entry-log", file) == lines("entry-log", config)
    blocks = [line for line in lines("entry-log", file) if line["kind"] == "block"]
    assert [
        line for line in lines("entry-log", file, "--from", blocks[2]["offset"]) if line["kind"] == "block"
    ] == blocks[2:]
    frames = [line for line in lines("journal", config) if line["kind"] == "frame"]
    journal = next((stopped / "journal0").glob("*.txn"))
    later = lines("journal", journal, "--from", frames[1]["offset"])
    assert [line for line in later if line["kind"] == "frame"] == frames[1:]
    assert "--from goes with one file" in inspect("journal", config, "--from", 1, status=2).stderr.decode()
    assert "no such file" in inspect("journal", stopped / "nowhere", status=1).stderr.decode()
    (stopped / "bookie.log").write_text("what the bookie says lies beside its directories")
    for where in (stopped, stopped / "bookie.log"):
        assert "this is no directory of a bookie" in inspect("marks", where, status=1).stderr.decode()
    (stopped / "journal0" / "cookie.json").unlink()
    assert lines("journal", stopped / "journal0")[-1]["findings"] > 1


def test_numbers_that_are_too_large_are_refused_by_name(stopped: Path) -> None:
    large = 1 << 63
    for words in (("ledger", stopped / "ledgers0", large), ("index", stopped / "ledgers0", "--ledger", large)):
        assert f"{large} is too large: a ledger id is at most" in inspect(*words, status=2).stderr.decode()
    file = next((stopped / "journal0").glob("*.txn"))
    assert f"{large} is not in the range" in inspect("journal", file, "--from", large, status=2).stderr.decode()


@pytest.mark.exhaustive
async def test_nothing_goes_on_when_the_command_was_killed(cluster: LocalCluster) -> None:
    async with bkpy_library.connect(cluster.connect_string) as client, await client.create_ledger() as writer:
        for _ in range(1000):  # a frame each, so more lines than a pipe holds
            await writer.append(b"x")
    assert b'"summary"' not in await asyncio.to_thread(_rest_after_a_kill, directory_of(cluster, "journal"))


def _rest_after_a_kill(where: Path) -> bytes:
    """What the command still prints when its process was killed after the first line."""
    words = [*COMMAND, "inspect", "journal", str(where), "--json", "--limit", "1000000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait()
        return process.stdout.read()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143), (signal.SIGSEGV, 1), (signal.SIGBUS, 1)]
)
def test_only_a_crash_of_the_process_that_reads_is_damage(
    stopped: Path, number: int, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kernel kills a process where memory is short, which says nothing of the files."""

    def run(_: object) -> Iterator[Finding]:
        faulthandler.disable()
        os.kill(os.getpid(), number)
        yield from ()

    monkeypatch.setattr(IndexInspection, "run", run)
    assert command.main(["index", str(stopped / "ledgers0")], standalone_mode=False) == status
    out, err = capfd.readouterr()
    assert ("rebuild-index" in out) == ("damage was found" in err) == (status == 1)
    assert ("is not inspected" in err) == (status != 1)


def test_output_is_bounded_and_never_has_a_key(stopped: Path) -> None:
    for what in (*(("inspect", what) for what in WHAT), ("inspect", "ledger")):
        more = [STRIPED] if what[1] == "ledger" else []
        out = (
            bkpy(*what, stopped / "ledgers0", *more).stdout + bkpy(*what, stopped / "ledgers0", *more, "--json").stdout
        )
        assert KEY not in out
        assert KEY.hex().encode() not in out
    shown = lines("index", stopped / "ledgers0", "--limit", 3)
    assert [line["kind"] for line in shown] == ["row"] * 3 + ["end", "summary"]


def test_it_is_said_when_one_finding_is_not_shown_and_only_then(stopped: Path) -> None:
    for what in ("index", "entry-log", "journal"):
        counted = [line for line in lines(what, stopped / "ledgers0") if line["kind"] not in ("end", "summary")]
        for limit, said in ((len(counted), False), (len(counted) - 1, True)):
            shown = inspect(what, stopped / "ledgers0", "--limit", limit).stdout.decode()
            assert ("not all are shown" in shown) is said, (what, limit)


def test_damage_is_told_with_what_to_do_and_a_status(stopped: Path) -> None:
    file = next((stopped / "ledgers0").glob("*.log"))
    with file.open("r+b") as log:
        log.seek(200)
        log.write(b"?")
    done = inspect("entry-log", stopped / "ledgers0", status=1)
    text = done.stdout.decode()
    assert "64  DAMAGE: no sound block from here to offset" in text
    assert "-> the other bookies of the ledger's ensembles have copies" in text
    assert "ledger 0: 0-2" in text
    assert done.stderr == b"bkpy: damage was found in 1 places\n"
    assert lines("entry-log", file, status=1)[-1]["damages"] == 1
    assert lines("ledger", stopped / "ledgers0", 0, status=1)[-1]["damages"] == 1
    assert lines("ledger", stopped / "ledgers0", 1)[-1]["damages"] == 0


def test_a_log_that_is_gone_is_told(stopped: Path) -> None:
    file = next((stopped / "ledgers0").glob("*.log"))
    file.unlink()
    for where in (stopped / "ledgers0", stopped / "journal0"):
        found = lines("entry-log", where, status=1)
        (told,) = [line for line in found if line["kind"] == "damage"]
        assert told["path"] == str(file)
        assert "this entry log is gone" in told["damage"]
        assert "rebuild-index" in told["advice"]
        assert "ledger 1: 0-2" in told["entries"]
    (told,) = [line for line in lines("entry-log", where, "--ledger", 1, status=1) if line["kind"] == "damage"]
    assert told["entries"] == ["ledger 1: 0-2", "ledger 1: 3-4"]


def test_batches_that_stayed_in_a_journal_file_are_told_where_they_are(tmp_path: Path) -> None:
    asyncio.run(build(tmp_path, clean=True, journal_run_bytes_min=1, journal_run_share_min=0.0))
    (file,) = (tmp_path / "ledgers0").glob("*.txn")
    for where in (file, tmp_path / "ledgers0"):
        found = lines("entry-log", where)
        assert found[-1]["damages"] == 0
        stayed = [line for line in found if line["kind"] == "block" and line["path"] == str(file)]
        assert {line["ledger"] for line in stayed} == set(range(STRIPED))
        assert all(line["checked"] for line in stayed)
    last = stayed[-1]
    assert [line["offset"] for line in lines("entry-log", file, "--from", last["offset"])[1:-1]] == [last["offset"]]
    assert {line["ledger"] for line in lines("entry-log", file, "--ledger", 1)[1:-1]} == {1}
    data = bytearray(file.read_bytes())
    data[last["offset"]] ^= 1
    file.write_bytes(data)
    found = lines("entry-log", tmp_path / "ledgers0", status=1)
    (told,) = [line for line in found if line["kind"] == "damage"]
    assert (told["path"], told["offset"], told["ledger"]) == (str(file), last["offset"], last["ledger"])
    assert "doesn't hold the batch" in told["damage"]
    (tmp_path / "ledgers0" / "index" / "data.mdb").unlink()
    assert [line["kind"] for line in lines("entry-log", file, status=1)].count("note") == 1


def test_an_index_that_its_library_dies_of_is_told(stopped: Path) -> None:
    data = stopped / "ledgers0" / "index" / "data.mdb"
    os.truncate(data, 8192 + 10)
    for what in ("index", "entry-log", "marks"):
        found = lines(what, stopped / "ledgers0", status=1)  # of logs too: which are missing is not known then
        assert [line for line in found if "damage" in line]
    data.unlink()
    found = lines("index", stopped / "ledgers0", status=1)
    assert "the index can't be opened" in found[0]["damage"]
