"""`bkpy ledger write`: where it reads from, how it ends, and what it says of copies that are missing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, as_json, bkpy, on_terminal, start, write

from bkpy.cli.ledger import write as written
from bkpy.cli.ledger.write import Writing
from bkpy.client.connecting import Connecting
from bkpy.config.client import client_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.preloaded import Fork

    from bkpy.local import LocalCluster


@pytest.fixture(scope="module")
def uri(cluster: LocalCluster) -> str:
    return cluster.connect_string


@pytest.fixture
def writer(uri: str) -> Iterator[Fork]:
    """The command, with an open pipe as its input."""
    with start("ledger", "write", uri=uri, stdin=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def begun(writer: Fork, uri: str, lines: bytes) -> int:
    """The ledger that the command writes, when these lines are acknowledged."""
    assert writer.stdout is not None
    assert writer.stdin is not None
    ledger_id = int(writer.stdout.readline())
    writer.stdin.write(lines)
    writer.stdin.flush()
    with start("ledger", "tail", ledger_id, uri=uri) as tail:
        assert tail.stdout is not None
        assert b"".join(tail.stdout.readline() for _ in lines.splitlines()) == lines
        tail.kill()
    return ledger_id


def ended(writer: Fork) -> tuple[int, str]:
    """The exit status, and what was said in the end."""
    assert writer.stderr is not None
    status = writer.wait(PATIENCE_S)
    return status, without_late(writer.stderr.read())


def without_late(said: bytes) -> str:
    """What was said but for what is true of a busy machine: one bookie was later than a closing writer waits."""
    late = r"bkpy: warning: ledger \d+ has fewer copies than its write quorum: bookie bookie-\d may be missing .*\n"
    return re.sub(late, "", said.decode())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_answered_with_what_was_acknowledged(uri: str, writer: Fork, number: int, status: int) -> None:
    ledger_id = begun(writer, uri, b"one\ntwo\n")
    writer.send_signal(number)
    said = f"bkpy: 2 entries were acknowledged in ledger {ledger_id}, which ends there\n"
    assert ended(writer) == (status, said)
    assert as_json("ledger", "show", ledger_id, uri=uri)["last_entry"] == 1


def test_a_fence_is_told_of_with_what_was_acknowledged(uri: str, writer: Fork) -> None:
    ledger_id = begun(writer, uri, b"one\ntwo\nthree\n")
    bkpy("ledger", "recover", ledger_id, uri=uri)
    assert writer.stdin is not None
    writer.stdin.write(b"four\n")
    writer.stdin.close()
    status, said = ended(writer)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("bkpy: fenced: another client is recovering the ledger")
    assert said.endswith(f"; 3 entries were acknowledged in ledger {ledger_id}; its recovery decides where it ends\n")


def test_an_error_is_told_of_with_what_was_acknowledged(uri: str, writer: Fork) -> None:
    ledger_id = begun(writer, uri, b"one\n")
    assert writer.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it reads no further than it has to
        writer.stdin.write(bytes(5 << 20))
        writer.stdin.close()
    status, said = ended(writer)
    assert (status, said.count("\n")) == (1, 1)
    assert "line 2 is longer than" in said
    assert said.endswith(f"; 1 entry was acknowledged in ledger {ledger_id}, which ends there\n")


def test_a_closed_output_is_told_of_with_what_was_acknowledged(uri: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with start("ledger", "write", uri=uri, stdin=subprocess.DEVNULL, stdout=writing) as running:
        os.close(writing)
        status, said = ended(running)
    assert status == 141
    assert re.fullmatch(r"bkpy: 0 entries were acknowledged in ledger \d+, which ends there\n", said)


def test_success_is_told_of_with_its_rate(uri: str) -> None:
    said = without_late(bkpy("ledger", "write", uri=uri, stdin=b"one\ntwo\n").stderr)
    assert re.fullmatch(r"2 entries, 6 B in [\d.]+ s to ledger \d+ \([\d,]+ entries/s, [\d.]+ \w+/s\)\n", said)


def test_files_pipes_and_redirections_are_read(uri: str, tmp_path: Path) -> None:
    lines = b"".join(b"line %d of a file\n" % i for i in range(30_000))
    file, pipe = tmp_path / "lines", tmp_path / "pipe"
    file.write_bytes(lines)
    os.mkfifo(pipe)
    with start("ledger", "write", pipe, uri=uri) as from_pipe:
        pipe.write_bytes(lines)
        assert from_pipe.stdout is not None
        ids = [int(from_pipe.stdout.readline())]
        assert ended(from_pipe)[0] == 0
    with open(file, "rb") as opened, start("ledger", "write", uri=uri, stdin=opened) as redirected:
        assert redirected.stdout is not None
        ids.append(int(redirected.stdout.readline()))
        assert ended(redirected)[0] == 0
    ids.append(int(bkpy("ledger", "write", file, uri=uri).stdout))
    for ledger_id in ids:
        assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == lines
    assert "Is a directory" in bkpy("ledger", "write", tmp_path, uri=uri, status=1).stderr.decode()


def test_a_write_that_waits_for_a_pipe_nobody_writes_to_ends_on_ctrl_c(uri: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with start("ledger", "write", tmp_path / "pipe", uri=uri) as waiting:
        assert waiting.stdout is not None
        ledger_id = int(waiting.stdout.readline())
        waiting.send_signal(signal.SIGINT)
        said = f"bkpy: 0 entries were acknowledged in ledger {ledger_id}, which ends there\n"
        assert ended(waiting) == (130, said)


@pytest.mark.parametrize("columns", [60, 80])
def test_progress_and_rate_are_shown_on_a_terminal(uri: str, tmp_path: Path, columns: int) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 99 + b"\n" + b"y" * 1947 + b"\n")
    shown = on_terminal(columns, "ledger", "write", file, uri=uri)
    assert any(re.search(r"2\.0/2\.0 KiB [\d.]+ \w*B/s 2 entries", line) for line in shown), shown
    assert not [line for line in shown if len(line) > columns and "entries/s" not in line]


# --- copies that are missing ----------------------------------------------------------------------------------------


def test_copies_that_are_missing_are_told_of(uri: str, cluster: LocalCluster, writer: Fork) -> None:
    """A bookie dies in the middle, and there is no other: written is what the others have, with a warning."""
    ledger_id = begun(writer, uri, b"one\ntwo\n")
    lost = cluster.bookies[1]
    bkpy("autorecovery", "disable", uri=uri)  # it would copy them as soon as the bookie is back
    asyncio.run(lost.kill())
    try:
        assert writer.stdin is not None
        assert writer.stderr is not None
        writer.stdin.write(b"three\nfour\n")
        writer.stdin.close()
        assert writer.wait(PATIENCE_S) == 0  # what was acknowledged is on an ack quorum
        said = writer.stderr.read().decode()
        assert (
            f"bkpy: warning: ledger {ledger_id} has fewer copies than its write quorum: bookie {lost.id} may be "
            "missing acknowledged entries from 2 on\n"
        ) in said
        (fragment,) = as_json("ledger", "show", ledger_id, uri=uri)["fragments"]
        found = {hold["bookie"]: hold for hold in fragment["holds"]}
        assert (found[lost.id]["state"], found[lost.id]["has_up_to"]) == ("unreachable", None)
        assert lost.id in found[lost.id]["error"]
        assert [found[b.id]["state"] for b in cluster.bookies if b is not lost] == ["complete"] * 2
        assert "unreachable" in bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()
    finally:
        asyncio.run(cluster.start())
    (fragment,) = as_json("ledger", "show", ledger_id, uri=uri)["fragments"]
    (hold,) = [hold for hold in fragment["holds"] if hold["bookie"] == lost.id]
    assert (hold["state"], hold["has_up_to"], hold["missing_from"], hold["count"]) == ("incomplete", 1, 2, 4)
    assert "missing from 2 on" in bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"one\ntwo\nthree\nfour\n"
    bkpy("autorecovery", "enable", uri=uri)


def test_copies_that_are_on_their_way_when_the_write_ends_are_not_warned_of(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    # However late a bookie of a busy machine is.
    patient = client_settings(close_linger_s=PATIENCE_S)
    monkeypatch.setattr(written, "connect", lambda uri: Connecting(uri, patient))
    creation = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
    for _ in range(60):  # the third bookie is the last to answer in one of several
        writing = Writing()
        asyncio.run(writing.run(uri, str(tmp_path / "lines"), creation, announce=False))
        assert (writing.result()["entries"], writing.result()["under_replicated"]) == (2, {})


def test_an_open_ledger_is_shown_with_what_bookies_have_so_far(uri: str, writer: subprocess.Popen[bytes]) -> None:
    ledger_id = begun(writer, uri, b"one\ntwo\n")
    (fragment,) = as_json("ledger", "show", ledger_id, uri=uri)["fragments"]
    assert {(h["state"], h["missing_from"], h["count"]) for h in fragment["holds"]} == {("growing", None, None)}
    assert max(h["has_up_to"] for h in fragment["holds"]) == 1
    assert "up to 1" in bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()


@pytest.mark.parametrize("columns", [40, 80, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (60, 120))])
def test_tables_are_readable_on_narrow_terminals(uri: str, columns: int) -> None:
    ledger_id = write(uri, b"x\n" * 5, "--ensemble", "3,2,2")
    created = as_json("ledger", "show", ledger_id, uri=uri)["created"]
    for command in (["ledger", "list", "-l"], ["ledger", "show", ledger_id]):
        shown = on_terminal(columns, *command, uri=uri)
        assert all(len(line) <= columns for line in shown if not line.startswith("    "))
        assert "…" not in "".join(shown)
        assert "CLOSED" in "".join(shown)
        assert created in "".join(line.strip() for line in shown) or columns == 40
    listed = on_terminal(columns, "ledger", "list", "-l", uri=uri)
    if columns == 120:
        assert next(line for line in listed if line.split()[0] == str(ledger_id)).split() == [
            str(ledger_id), "CLOSED", "4", "5", "3,2,2", "crc32c", created, "1",
        ]  # fmt: skip
    else:
        place = next(i for i, line in enumerate(listed) if line.startswith(f"ledger {ledger_id},"))
        paragraph = " ".join(line.strip() for line in listed[place : place + 4])
        for part in ("state CLOSED", "last entry 4", "bytes 5", "E,Qw,Qa 3,2,2", "digest crc32c", f"created {created}"):
            assert part in paragraph
