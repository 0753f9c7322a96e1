"""Ids of bookies that were given up: the record is there or not, and whoever makes it knows which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import ROOT, runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Somebody, Troubled

from bkpy.errors import BookKeeperError, CorruptDataError, IdentityError, MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.bookies.retired import RetiredBy, read_retired, retire
from bkpy.metadata.store.store import Create, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from bkpy.metadata.store.memory import MemoryStore

NODE = paths.retired(ROOT, "b1")
ANOTHER = b'{"version": 1, "by": "decommission", "since_ms": 7, "limbo_to": 3, "instance": "another"}'
BEFORE_THE_WRITE = {False: 3, True: 1}  # calls, where there is no record yet, and where there is one


async def given_up(store: Any, by: RetiredBy = RetiredBy.DECOMMISSION, **given: Any) -> None:
    await retire(store, ROOT, "b1", by, runtime_here().clock, attempts_max=2, **given)


async def test_a_record_is_made_and_changed_and_never_forgets_an_id(tree: MemoryStore) -> None:
    store = tree.session()
    assert await read_retired(store, ROOT, "b1") is None
    await given_up(store, limbo_to=9, instance="first")
    made = await read_retired(store, ROOT, "b1")
    assert made is not None
    assert (made.decommissioned, made.limbo_to, made.instance) == (True, 9, "first")
    with pytest.raises(IdentityError, match="the bookie was decommissioned"):
        made.check_usable()
    fields = json.loads(tree.node(NODE).data) | {"of_a_later_version": 1}
    tree.apply(Put(NODE, json.dumps(fields).encode(), tree.node(NODE).version), 0)
    other = next(by for by in RetiredBy if by is not RetiredBy.DECOMMISSION)
    await given_up(store, other, limbo_to=4, instance="second")
    changed = await read_retired(store, ROOT, "b1")
    assert changed is not None
    assert (changed.by, changed.limbo_to, changed.instance) == (other, 9, "second")
    assert json.loads(tree.node(NODE).data)["of_a_later_version"] == 1
    changed.check_usable()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("times", [1, 2, pytest.param(9, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("at", range(8))
async def test_whatever_goes_wrong_the_record_is_there_unless_an_error_says_otherwise(
    tree: MemoryStore, known: bool, trouble: str, times: int, at: int
) -> None:
    if known:
        await given_up(tree.session(), limbo_to=5)
    store = Troubled(tree, [None] * at + [trouble] * times)
    error = await failure(given_up(store, instance="mine", limbo_to=7))
    found = await read_retired(tree.session(), ROOT, "b1")
    stored = found is not None and (found.instance, found.limbo_to) == ("mine", 7)
    assert stored or error is not None
    if error is not None:
        assert error.retriable
        assert error.outcome_unknown or not stored


async def failure(call: Awaitable[None]) -> BookKeeperError | None:
    """What the call raises."""
    try:
        await call
    except BookKeeperError as error:
        return error
    return None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("at", range(6))
async def test_of_two_commands_at_once_one_is_refused(tree: MemoryStore, known: bool, at: int) -> None:
    if known:
        await given_up(tree.session(), limbo_to=5)
    else:
        tree.apply(Create(f"{ROOT}/{paths.RETIRED}", b""), 0)
    somebody = Somebody(tree, NODE)
    store = Troubled(tree, [None] * at + [somebody.puts(ANOTHER) if known else somebody.creates(ANOTHER)])
    error = await failure(given_up(store, instance="mine", limbo_to=7))
    assert isinstance(error, MetadataConflictError | None)
    found = await read_retired(tree.session(), ROOT, "b1")
    assert found is not None
    assert (error is not None) == (at == BEFORE_THE_WRITE[known])
    assert found.instance == ("mine" if error is None else "another")


async def test_a_record_that_makes_no_sense_is_named(tree: MemoryStore) -> None:
    store = tree.session()
    await given_up(store)
    for value in (b"{", b'{"version": 1, "by": "chance", "since_ms": 1, "limbo_to": 1, "instance": ""}'):
        tree.apply(Put(NODE, value, tree.node(NODE).version), 0)
        with pytest.raises(CorruptDataError, match="b1"):
            await read_retired(store, ROOT, "b1")
        with pytest.raises(CorruptDataError):
            await given_up(store)
