"""The helper that waits for conditions returns what it saw, and its failure shows what it looked at last."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import eventually, eventually_here


async def test_the_first_true_value_is_returned() -> None:
    seen: list[int] = []

    async def more() -> list[int]:
        await asyncio.sleep(0)
        seen.append(len(seen))
        return seen if len(seen) > 2 else []

    assert await eventually(more) == [0, 1, 2]
    assert await eventually(lambda: len(seen)) == 3
    assert await eventually(more, until=lambda found: len(found) > 4) == [0, 1, 2, 3, 4]
    assert eventually_here(lambda: seen) == [0, 1, 2, 3, 4]


async def test_errors_that_mean_not_yet_are_waited_out_and_others_are_raised() -> None:
    left: list[Exception] = [ValueError("broken"), KeyError("not there"), KeyError("not there")]

    def look() -> str:
        raise left.pop()

    with pytest.raises(ValueError, match="broken"):
        await eventually(look, meanwhile=KeyError)
    assert not left


@pytest.mark.thorough
async def test_a_failure_shows_the_condition_and_what_it_saw_last() -> None:
    have = ["one", "two"]
    with pytest.raises(AssertionError) as failed:
        await eventually(lambda: have[2:], "a third comes", deadline_s=0.02)
    assert str(failed.value).splitlines() == [
        "a third comes: not within 0 s",
        'await eventually(lambda: have[2:], "a third comes", deadline_s=0.02)',
        "last value: []",
        "have = ['one', 'two']",
    ]
    with pytest.raises(AssertionError, match=r"(?s)nothing.*last value: False.*have = "):
        eventually_here(lambda: "three" in have, "nothing", pause_s=0.001, deadline_s=0.01)
    with pytest.raises(AssertionError, match="last value: KeyError"):
        await eventually(lambda: {}["key"], meanwhile=KeyError, deadline_s=0.02)
