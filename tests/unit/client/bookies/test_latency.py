"""When a read counts as late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.client.bookies.latency import ReadLatency
from bkpy.config.client import client_settings


def latency(**changes: float) -> ReadLatency:
    usual = {"percentile": 90.0, "min_s": 0.01, "default_s": 0.5}
    return ReadLatency(client_settings(**{f"read_late_{name}": value for name, value in (usual | changes).items()}))


@pytest.mark.scenario(38)
def test_the_default_holds_until_there_are_enough_samples() -> None:
    reads = latency()
    for _ in range(19):
        reads.answered("a", 0.1)
        assert reads.late_s == 0.5
    reads.answered("a", 0.1)
    assert reads.late_s == 0.1


@pytest.mark.scenario(38)
def test_late_is_later_than_the_percentile_of_recent_reads() -> None:
    reads = latency()
    for i in range(256):
        reads.answered("a", (i % 100 + 1) / 100)
    assert 0.85 <= reads.late_s <= 0.95
    for _ in range(256 + 16):  # the bookies have become slower: the old reads are forgotten
        reads.answered("a", 3.0)
    assert reads.late_s == 3.0
    for _ in range(256 + 16):  # and faster again
        reads.answered("a", 0.1)
    assert reads.late_s == 0.1


@pytest.mark.scenario(38)
def test_late_is_never_less_than_the_floor() -> None:
    reads = latency()
    for _ in range(100):
        reads.answered("a", 0.0001)
    assert reads.late_s == 0.01
    assert latency(min_s=2.0).late_s == 2.0


@pytest.mark.scenario(38)
def test_a_bookie_is_slow_when_it_is_overtaken_again_and_again() -> None:
    reads = latency()
    assert [reads.superseded("a") for _ in range(6)] == [False, False, True, False, False, True]
    reads.superseded("b")
    reads.superseded("b")
    reads.answered("b", 0.1)  # it was only unlucky
    assert [reads.superseded("b") for _ in range(3)] == [False, False, True]
    assert reads.late_s == 0.5  # what was given up is no sample


@pytest.mark.thorough
@given(st.lists(st.floats(0, 1e6), max_size=400), st.floats(1, 100))
def test_late_is_always_a_recent_sample_or_a_bound(seconds: list[float], percentile: float) -> None:
    reads = latency(percentile=percentile)
    for i, value in enumerate(seconds):
        reads.answered("a", value)
        assert reads.late_s in {0.5, 0.01, *seconds[max(0, i - 256 - 16) : i + 1]}
