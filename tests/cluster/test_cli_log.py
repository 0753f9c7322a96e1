"""`bkpy log`: what is written to a log is read, followed, shown and deleted; and who may do so."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, as_json, bkpy, on_terminal, start

import bkpy as bkpy_library

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalCluster

LINES = b"one\ntwo\n\nfour \xff\n"


@pytest.fixture(scope="module")
def uri(cluster: LocalCluster) -> str:
    return cluster.connect_string


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A log's name of the test's own."""
    return f"log-{re.sub('[^a-z0-9]+', '-', request.node.name)}"


def test_what_is_written_is_read_back_byte_for_byte(uri: str, name: str, tmp_path: Path) -> None:
    begun = int(time.time())
    bkpy("log", "create", name, uri=uri)
    done = bkpy("log", "write", name, uri=uri, stdin=LINES)
    assert done.stdout == b"0\n"
    assert re.fullmatch(
        rf"4 entries, 12 B in [\d.]+ s to log {name}, from position 0 on \([\d,]+ entries/s, [\d.]+ \w+/s\)\n",
        done.stderr.decode(),
    )
    file = tmp_path / "lines"
    file.write_bytes(b"five\nsix")
    again = as_json("log", "write", name, file, uri=uri)
    assert {key: again[key] for key in again if key != "seconds"} == {
        "log": name,
        "first_position": 4,
        "next_position": 6,
        "entries": 2,
        "bytes": 7,
    }
    assert bkpy("log", "read", name, uri=uri).stdout == LINES + b"five\nsix\n"
    assert bkpy("log", "read", name, "--first", 3, "--last", 4, uri=uri).stdout == b"four \xff\nfive\n"
    assert bkpy("log", "read", name, "--last", 0, "--format", "hex", uri=uri).stdout == b"6f6e65\n"
    rows = [json.loads(line) for line in bkpy("log", "read", name, "--json", uri=uri).stdout.splitlines()]
    assert [row["position"] for row in rows] == list(range(6))
    assert [row["entry_id"] for row in rows] == [0, 1, 2, 3, 0, 1]
    assert len({row["ledger_id"] for row in rows}) == 2
    assert [row["length"] for row in rows] == [3, 3, 0, 6, 4, 3]
    assert rows[0]["text"] == "one"
    assert "base64" in rows[3]
    assert [begun <= row["time"] <= time.time() for row in rows] == [True] * 6


def test_ranges_by_time(uri: str, name: str) -> None:
    bkpy("log", "write", name, "--create", uri=uri, stdin=b"a\nb\n")
    bkpy("log", "write", name, uri=uri, stdin=b"c\n")
    rows = [json.loads(line) for line in bkpy("log", "read", name, "--json", uri=uri).stdout.splitlines()]
    between = rows[2]["time"]
    assert bkpy("log", "read", name, "--since", between, uri=uri).stdout == b"c\n"
    assert bkpy("log", "read", name, "--until", between, uri=uri).stdout == b"a\nb\n"
    assert bkpy("log", "read", name, "--since", "2001-01-01", uri=uri).stdout == b"a\nb\nc\n"
    assert bkpy("log", "read", name, "--until", "2001-01-01T00:00:00+01:00", uri=uri).stdout == b""
    assert bkpy("log", "read", name, "--since", "1h", uri=uri).stdout == b"a\nb\nc\n"
    assert bkpy("log", "read", name, "--until", "1h", uri=uri).stdout == b""
    assert b"no time" in bkpy("log", "read", name, "--since", "noon", uri=uri, status=2).stderr
    both = bkpy("log", "read", name, "--since", 1, "--first", 1, uri=uri, status=2).stderr
    assert b"--first and --since" in both


def test_what_can_not_be_read(uri: str, name: str) -> None:
    bkpy("log", "create", name, uri=uri)
    assert bkpy("log", "read", name, uri=uri).stdout == b""
    assert bkpy("log", "read", name, "--first", 0, uri=uri).stdout == b""
    past = bkpy("log", "read", name, "--first", 1, uri=uri, status=1).stderr.decode()
    assert past == f"bkpy: log {name} has no entries yet, and so no position 1\n"
    assert b"no position 0" in bkpy("log", "read", name, "--last", 0, uri=uri, status=1).stderr
    assert (
        b"--last 1 lies before --first 2"
        in bkpy("log", "read", name, "--first", 2, "--last", 1, uri=uri, status=2).stderr
    )
    for command in ("read", "tail", "show", "write", "consumers"):
        assert b"there is no log nosuch" in bkpy("log", command, "nosuch", uri=uri, status=1).stderr
    bkpy("log", "write", name, uri=uri, stdin=b"one\n")
    past = bkpy("log", "read", name, "--first", 1, uri=uri, status=1).stderr.decode()
    assert past == f"bkpy: position 1 is past the last entry of log {name}, 0\n"
    assert b"name of a log" in bkpy("log", "create", "a/b", uri=uri, status=1).stderr
    twice = bkpy("log", "create", name, uri=uri, status=1).stderr.decode()
    assert twice == f"bkpy: there is a log {name} already, or it is being deleted\n"


def test_a_tail_follows_one_writer_after_the_other(uri: str, name: str) -> None:
    bkpy("log", "write", name, "--create", uri=uri, stdin=b"one\n")
    with start("log", "tail", name, uri=uri) as tail, start("log", "tail", name, "--json", uri=uri) as with_positions:
        assert tail.stdout is not None
        assert with_positions.stdout is not None
        assert tail.stdout.readline() == b"one\n"
        for line in (b"two\n", b"three\n"):
            bkpy("log", "write", name, uri=uri, stdin=line)
            assert tail.stdout.readline() == line
        assert [json.loads(with_positions.stdout.readline())["position"] for _ in range(3)] == [0, 1, 2]
        for running in (tail, with_positions):
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
            assert running.stderr is not None
            assert running.stderr.read() == b""


def test_a_tail_of_what_is_new_ends_when_the_log_is_deleted(uri: str, name: str) -> None:
    bkpy("log", "write", name, "--create", uri=uri, stdin=b"old\n")
    with start("log", "tail", name, "--first", 1, uri=uri) as tail, start("log", "tail", name, "--new", uri=uri) as new:
        bkpy("log", "write", name, uri=uri, stdin=b"1\n")
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"1\n"
        bkpy("log", "delete", name, "--yes", uri=uri)
        for running in (tail, new):
            assert running.wait(PATIENCE_S) == 1
            assert running.stderr is not None
            assert f"log {name}" in running.stderr.read().decode()
        assert new.stdout is not None
        assert b"old" not in new.stdout.read()


def test_a_writer_is_fenced_by_the_next_one_unless_that_leaves_it_alone(uri: str, name: str) -> None:
    with start("log", "write", name, "--create", uri=uri, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        with start("log", "tail", name, uri=uri) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() + tail.stdout.readline() == b"one\ntwo\n"
            tail.kill()
        for options in ((), ("--no-takeover",)):
            refused = bkpy("log", "write", name, *options, uri=uri, status=1, stdin=b"never\n").stderr.decode()
            assert f"log {name} has a writer since 2" in refused
            assert f", pid {writer.pid};" in refused
            assert socket.gethostname() in refused
            assert "--takeover" in refused
        bkpy("log", "write", name, "--takeover", uri=uri, stdin=b"three\n")
        writer.stdin.write(b"lost\n")
        writer.stdin.close()
        assert writer.wait(PATIENCE_S) == 1
        assert writer.stderr is not None
        said = writer.stderr.read().decode()
        assert said.count("\n") == 1
        assert f"2 entries were acknowledged in log {name}, from position 0 on; its next writer decides" in said
    assert bkpy("log", "read", name, uri=uri).stdout == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_answered_with_what_was_acknowledged(uri: str, name: str, number: int, status: int) -> None:
    with start("log", "write", name, "--create", uri=uri, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        with start("log", "tail", name, uri=uri) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() + tail.stdout.readline() == b"one\ntwo\n"
            tail.kill()
        writer.send_signal(number)
        assert writer.wait(PATIENCE_S) == status
        assert writer.stderr is not None
        assert writer.stderr.read().decode() == f"bkpy: 2 entries were acknowledged in log {name}, from position 0 on\n"


def test_many_lines(uri: str, name: str) -> None:
    lines = b"".join(b"line %d of many\n" % i for i in range(50_000))
    bkpy("log", "write", name, "--create", "--ensemble", "3,2,2", uri=uri, stdin=lines)
    done = bkpy("log", "read", name, uri=uri)
    assert done.stdout == lines
    assert done.stderr == b""  # no progress bar where there is no terminal


def test_a_password(uri: str, name: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_bytes(b"secret\n")
    given = ("--password-file", password)
    bkpy("log", "create", name, "--digest", "hmac-sha256", *given, uri=uri)
    bkpy("log", "write", name, *given, uri=uri, stdin=b"one\n")
    assert bkpy("log", "read", name, *given, uri=uri).stdout == b"one\n"
    for command in ("read", "tail", "write"):
        assert b"password" in bkpy("log", command, name, uri=uri, status=1).stderr
    shown = as_json("log", "show", name, uri=uri)
    assert (shown["digest"], shown["next_position"]) == ("hmac-sha256", 1)  # nobody writes it: all is known
    assert "secret" not in json.dumps(shown)
    assert "key" not in json.dumps(shown)


def test_show_and_list(uri: str, name: str) -> None:
    kept = ("--retention", "1h", "--retention-bytes", "1MiB", "--consumer-lag-max", 60, "--consumer-expiry", "30d")
    bkpy("log", "create", name, "--ensemble", "2,2,1", *kept, uri=uri)
    bkpy("log", "write", name, uri=uri, stdin=b"one\ntwo\n")
    bkpy("log", "write", name, uri=uri, stdin=b"three\n")
    bkpy("log", "consumers", name, "--set", "billing", 1, uri=uri)
    shown = as_json("log", "show", name, uri=uri)
    assert (shown["log"], shown["first_position"], shown["next_position"], shown["writer"]) == (name, 0, 3, None)
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (2, 2, 1)
    assert (shown["retention_s"], shown["retention_bytes"], shown["consumer_lag_max_s"]) == (3600, 1 << 20, 60)
    assert shown["consumer_expiry_s"] == 30 * 86400
    assert [(s["first_position"], s["entries"], s["bytes"]) for s in shown["segments"]] == [(0, 2, 6), (2, 1, 5)]
    assert [(c["consumer"], c["position"]) for c in shown["consumers"]] == [("billing", 1)]
    table = bkpy("log", "show", name, uri=uri).stdout.decode()
    assert re.search(r"next position +3 ", table)
    assert re.search(r"writer +nobody ", table)
    assert "entries no older than 3600 s, and the last 1.0 MiB" in table
    assert re.search(r"billing\s+1\s", table)
    assert f"{name}\n" in bkpy("log", "list", uri=uri).stdout.decode()
    [row] = [row for row in as_json("log", "list", uri=uri) if row["log"] == name]
    assert (row["first_position"], row["known_end"], row["ledgers"], row["bytes"]) == (0, 3, 2, 11)
    assert (row["consumers"], row["lag"]) == (1, 2)
    assert re.search(rf"{name}\s+0\s+3\s+2\s+\d+\s+1\s+2\s+- ", bkpy("log", "list", "--long", uri=uri).stdout.decode())
    assert any("billing" in line for line in on_terminal(120, "log", "show", name, uri=uri))


async def test_logs_are_listed_by_what_they_are(uri: str, cluster: LocalCluster) -> None:
    async with bkpy_library.connect(uri) as client:
        admin = bkpy_library.AdminClient(client)
        first, second = "filtered-a", "filtered-b"
        async with await client.open_log(first, create=True) as log:
            await log.append(b"entry")
        async with await client.read_log(first) as reader:
            await reader.consumer("late", create=True)
        async with await client.open_log(second, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1) as log:
            await log.append(b"entry")
            (segment,) = (await admin.describe_log(second)).log_list.segments
            (bookie,) = (await client.ledger_metadata(segment.ledger_id)).fragments[-1].bookies
            (other, *_) = [one.id for one in cluster.bookies if one.id != bookie]

            async def names(*options: object) -> list[str]:
                done = await asyncio.to_thread(bkpy, "log", "list", *options, uri=uri)
                return [name for name in done.stdout.decode().split() if name in (first, second)]

            assert await names("--written") == [second]
            assert await names("--not-written") == [first]
            assert await names("--behind") == [first]
            assert await names("--since", "1h") == [first, second]
            assert await names("--since", "2999-01-01T00:00") == []
            assert second in await names("--bookie", bookie)
            assert second not in await names("--bookie", other)
            assert await names("--missing-copies") == []
            rows = await asyncio.to_thread(as_json, "log", "list", "--written", uri=uri)
            assert [row["log"] for row in rows if row["log"] in (first, second)] == [second]


def test_truncate_asks_and_leaves_consumers_what_they_need(uri: str, name: str) -> None:
    for lines in (b"0\n1\n", b"2\n3\n", b"4\n"):
        bkpy("log", "write", name, "--create", uri=uri, stdin=lines)
    bkpy("log", "consumers", name, "--set", "billing", 3, uri=uri)
    assert b"nothing was deleted" in bkpy("log", "truncate", name, 2, uri=uri, stdin=b"n\n", status=1).stderr
    assert b"--yes" in bkpy("log", "truncate", name, 2, uri=uri, status=2).stderr
    done = bkpy("log", "truncate", name, 2, uri=uri, stdin=b"y\n")
    assert done.stderr.decode().endswith(f"log {name} begins at position 2 now, in 2 ledgers\n")
    assert bkpy("log", "read", name, uri=uri).stdout == b"2\n3\n4\n"
    gone = bkpy("log", "read", name, "--first", 1, uri=uri, status=1).stderr.decode()
    assert gone == f"bkpy: log {name} begins at position 2, 1 is gone\n"
    gone = bkpy("log", "read", name, "--last", 1, uri=uri, status=1).stderr.decode()
    assert gone == f"bkpy: log {name} begins at position 2, 1 is gone\n"
    assert b"billing" in bkpy("log", "truncate", name, 4, "--yes", uri=uri, status=1).stderr
    assert b"position 5" in bkpy("log", "truncate", name, 9, "--yes", uri=uri, status=1).stderr
    result = as_json("log", "truncate", name, 5, "--ignore-consumers", "--yes", uri=uri)
    assert result == {"log": name, "first_position": 5, "ledgers": 1}
    assert bkpy("log", "read", name, uri=uri).stdout == b""
    bkpy("log", "write", name, uri=uri, stdin=b"5\n")
    assert bkpy("log", "read", name, uri=uri).stdout == b"5\n"


def test_consumers(uri: str, name: str) -> None:
    bkpy("log", "write", name, "--create", uri=uri, stdin=b"one\ntwo\n")
    assert as_json("log", "consumers", name, uri=uri) == []
    for position in (2, 1):
        [row] = as_json("log", "consumers", name, "--set", "billing", position, uri=uri)
        assert (row["consumer"], row["position"]) == ("billing", position)
    assert re.search(r"billing\s+1\s", bkpy("log", "consumers", name, uri=uri).stdout.decode())
    assert (row["lag_entries"], row["lag_bytes"], row["holder"]) == (1, 3, None)
    assert 0 <= row["idle_s"] <= row["lag_s"] < 600
    past = bkpy("log", "consumers", name, "--set", "billing", 3, uri=uri, status=1).stderr.decode()
    assert past == f"bkpy: log {name} is known to reach up to position 2, so no consumer can be at 3\n"
    assert (
        b"nothing was deleted"
        in bkpy("log", "consumers", name, "--delete", "billing", uri=uri, stdin=b"n\n", status=1).stderr
    )
    assert as_json("log", "consumers", name, "--delete", "billing", "--yes", uri=uri) == []
    missing = bkpy("log", "consumers", name, "--delete", "billing", "--yes", uri=uri, status=1).stderr.decode()
    assert missing == f"bkpy: log {name} has no consumer billing\n"


def test_delete(uri: str, name: str) -> None:
    bkpy("log", "write", name, "--create", uri=uri, stdin=b"one\n")
    [segment] = as_json("log", "show", name, uri=uri)["segments"]
    refused = bkpy("ledger", "delete", segment["ledger_id"], "--yes", uri=uri, status=1).stderr.decode()
    assert f"log {name}" in refused
    bkpy("log", "delete", name, uri=uri, stdin=b"n\n", status=1)
    some = bkpy("log", "delete", "nosuch", name, "--yes", uri=uri, status=1).stderr.decode()
    assert some == f"bkpy: deleted: {name}; not deleted: nosuch (there is no log nosuch)\n"
    assert name not in bkpy("log", "list", uri=uri).stdout.decode().split()
    assert b"no such ledger" in bkpy("ledger", "show", segment["ledger_id"], uri=uri, status=1).stderr


@pytest.mark.scenario(66)
async def test_a_program_reads_what_the_command_wrote_across_many_rolls(uri: str, name: str) -> None:
    """On a real ZooKeeper: a writer that rolls all the time, a tail and a consumer."""
    await asyncio.to_thread(bkpy, "log", "create", name, uri=uri)
    async with bkpy_library.connect(uri) as writing, bkpy_library.connect(uri) as reading:
        reader = await reading.read_log(name)
        found = []

        async def follow() -> None:
            async for entry in reader.tail():
                found.append(entry)
                if len(found) == 60:
                    return

        following = asyncio.create_task(follow())
        async with await writing.open_log(name, roll_entries=3) as writer:
            for position in range(60):
                assert await writer.append(b"%d" % position) == position
            async with asyncio.timeout(PATIENCE_S):
                await following
        assert [entry.position for entry in found] == list(range(60))
        assert [entry.data for entry in found] == [b"%d" % p for p in range(60)]
        assert sorted(entry.time for entry in found) == [entry.time for entry in found]
        await reader.refresh()
        assert reader.next_position == 60
        assert [entry async for entry in reader.read()] == found
        assert await reader.position_at(found[30].time) <= 30
    assert bkpy("log", "read", name, "--first", 58, uri=uri).stdout == b"58\n59\n"


@pytest.mark.parametrize("command", ["log", "ledger"])
def test_a_tail_ends_when_nobody_reads_it_any_more(uri: str, name: str, command: str) -> None:
    """Though nothing is appended: the next entry may be hours away."""
    with start("ledger", "write", uri=uri, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        what = writer.stdout.readline().decode().strip()
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        if command == "log":
            bkpy("log", "write", name, "--create", uri=uri, stdin=b"one\n")
            what = name
        with start(command, "tail", what, uri=uri) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            assert tail.stdout.readline() == b"one\n"
            tail.stdout.close()
            assert tail.wait(PATIENCE_S) == 141
            assert tail.stderr.read() == b""
        writer.stdin.close()
