"""What is said of a write is true of the store, wherever connections are lost and whatever others do meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep, Somebody, Troubled

from bkpy.errors import ClientClosedError, MetadataUnavailableError
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import (
    Changed,
    DeleteOutcome,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    Superseded,
    Unknown,
    escalate_unknown,
    to_error,
)
from bkpy.metadata.store.resolve import (
    attempt,
    create_certainly,
    delete_certainly,
    delete_together,
    ensure_path,
    leave_line,
    put_certainly,
    take_number,
    take_turn,
)
from bkpy.metadata.store.store import Check, Create, Delete, NoNode

NODE = "/n"
OURS, THEIRS, BEFORE = b"ours", b"theirs", b"before"
ATTEMPTS = 5


def tree_with(data: bytes | None) -> tuple[MemoryStore, Somebody]:
    tree = MemoryStore(runtime_here())
    if data is not None:
        tree.apply(Create(NODE, data), 0)
    return tree, Somebody(tree, NODE)


Script = Callable[[Somebody], list[str | OpeningStep | None]]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (lambda other: [], Done),
        (lambda other: [REQUEST_LOST], Done),
        (lambda other: [REPLY_LOST], Done),
        (lambda other: [AWAY], NotDone),
        (lambda other: [CLOSED], NotDone),
        (lambda other: [REQUEST_LOST, AWAY], Unknown),
        (lambda other: [REPLY_LOST, CLOSED], Unknown),
        (lambda other: [REPLY_LOST, None, AWAY], Unknown),  # the second put is refused, the first can't be looked for
        (lambda other: [REPLY_LOST, None, None, AWAY], Unknown),
        (lambda other: [REPLY_LOST, None, CLOSED], Unknown),
        (lambda other: [REQUEST_LOST] * ATTEMPTS, Unknown),
        (lambda other: [other.puts(THEIRS)], Changed),
        (lambda other: [other.puts(OURS)], Changed),  # equal, and not ours all the same
        (lambda other: [REQUEST_LOST, other.puts(THEIRS)], Changed),
        (lambda other: [REQUEST_LOST, other.puts(OURS)], Done),  # what was wanted is there, whoever wrote it
        (lambda other: [REPLY_LOST, other.puts(THEIRS)], Superseded),
        (lambda other: [REPLY_LOST, other.puts(OURS)], Superseded),  # equal, at a version that isn't ours
        (lambda other: [REQUEST_LOST, other.puts(THEIRS), other.puts(OURS)], Superseded),
        (lambda other: [other.deletes], Missing),
        (lambda other: [REPLY_LOST, other.deletes], Missing),
        (lambda other: [REPLY_LOST, None, None, other.deletes], Missing),
    ],
)
async def test_a_put(script: Script, expected: type) -> None:
    tree, other = tree_with(BEFORE)
    store = Troubled(tree, script(other))
    outcome = await put_certainly(store, NODE, OURS, 0, attempts_max=ATTEMPTS)
    assert type(outcome) is expected
    if isinstance(outcome, Done):
        assert await store.get(NODE) == (OURS, outcome.version)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (lambda other: [], Done),
        (lambda other: [REQUEST_LOST], Done),
        (lambda other: [REPLY_LOST], Done),
        (lambda other: [AWAY], NotDone),
        (lambda other: [REQUEST_LOST, AWAY], Unknown),
        (lambda other: [REPLY_LOST, None, AWAY], Unknown),
        (lambda other: [REPLY_LOST, None, None, AWAY], Unknown),
        (lambda other: [REPLY_LOST, CLOSED], Unknown),
        (lambda other: [REQUEST_LOST] * ATTEMPTS, Unknown),
        (lambda other: [other.creates(THEIRS)], Exists),
        (lambda other: [other.creates(OURS)], Exists),
        (lambda other: [REQUEST_LOST, other.creates(THEIRS)], Exists),
        (lambda other: [REPLY_LOST, other.puts(THEIRS)], Superseded),
        (lambda other: [REPLY_LOST, None, other.deletes], Superseded),
    ],
)
async def test_a_create(script: Script, expected: type) -> None:
    tree, other = tree_with(None)
    store = Troubled(tree, script(other))
    outcome = await create_certainly(store, Create(NODE, OURS), attempts_max=ATTEMPTS)
    assert type(outcome) is expected
    if isinstance(outcome, Done):
        assert await store.get(NODE) == (OURS, outcome.version)


async def test_a_create_below_a_node_that_is_missing_or_together_with_one_that_is_refused() -> None:
    tree, _ = tree_with(THEIRS)
    store = Troubled(tree)
    assert await create_certainly(store, Create("/a/b", OURS), attempts_max=1) == Missing("/a/b", 0)
    together = await create_certainly(store, Create("/a", OURS), Delete("/c"), attempts_max=1)
    assert together == Missing("/c", 1)
    # Another node of the transaction is in the way: that is not looked into, though the outcome was unknown before.
    store.script.extend([REQUEST_LOST])
    assert await create_certainly(store, Create("/a", OURS), Create(NODE, THEIRS), attempts_max=ATTEMPTS) == Exists(
        NODE
    )
    assert not await store.exists("/a")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (lambda other: [], Gone),
        (lambda other: [REQUEST_LOST], Gone),
        (lambda other: [REPLY_LOST], Gone),
        (lambda other: [AWAY], NotDone),
        (lambda other: [REPLY_LOST, AWAY], Unknown),
        (lambda other: [REPLY_LOST, CLOSED], Unknown),
        (lambda other: [REQUEST_LOST] * ATTEMPTS, Unknown),
        (lambda other: [other.deletes], Missing),
        (lambda other: [other.puts(THEIRS)], Changed),
        (lambda other: [REQUEST_LOST, other.puts(THEIRS)], Superseded),
    ],
)
async def test_a_delete(script: Script, expected: type) -> None:
    tree, other = tree_with(BEFORE)
    store = Troubled(tree, script(other))
    assert type(await delete_certainly(store, NODE, 0, attempts_max=ATTEMPTS)) is expected
    if expected is not Unknown:
        assert (NODE in tree.paths) == (expected in (Changed, Superseded, NotDone))


async def test_a_node_with_nodes_below_is_not_deleted() -> None:
    tree, _ = tree_with(BEFORE)
    tree.apply(Create(f"{NODE}/below", b""), 0)
    assert await delete_certainly(Troubled(tree), NODE, attempts_max=1) == Changed()
    assert await delete_certainly(Troubled(tree, [REQUEST_LOST]), NODE, attempts_max=2) == Superseded()


@pytest.mark.parametrize(
    ("act", "expected"), [("deletes", Missing("/other", 1)), ("puts", Changed())], ids=["it is gone", "it has changed"]
)
async def test_what_another_node_keeps_from_being_deleted_is_still_there(act: str, expected: DeleteOutcome) -> None:
    """Also after a try that nobody knows the end of: the node with the unique name was there once more."""
    tree, _ = tree_with(BEFORE)
    tree.apply(Create("/other", BEFORE), 0)
    other = Somebody(tree, "/other")
    store = Troubled(tree, [REQUEST_LOST, {"deletes": other.deletes, "puts": other.puts(THEIRS)}[act]])
    assert await delete_together(store, Delete(NODE), Check("/other", 0), attempts_max=ATTEMPTS) == expected
    assert NODE in tree.paths
    tree.apply(Create("/another", BEFORE), 0)
    lost = Troubled(tree, [REPLY_LOST, Somebody(tree, "/another").puts(THEIRS)])
    assert await delete_together(lost, Delete(NODE), Check("/another", 0), attempts_max=ATTEMPTS) == Gone()
    assert NODE not in tree.paths


@pytest.mark.parametrize("lost", [REQUEST_LOST, REPLY_LOST])
async def test_with_a_single_attempt_what_was_lost_is_unknown(lost: str) -> None:
    tree, _ = tree_with(BEFORE)
    assert isinstance(await put_certainly(Troubled(tree, [lost]), NODE, OURS, 0, attempts_max=1), Unknown)
    assert isinstance(await create_certainly(Troubled(tree, [lost]), Create("/m", OURS), attempts_max=1), Unknown)
    assert isinstance(await delete_certainly(Troubled(tree, [lost]), NODE, attempts_max=1), Unknown)


TURNS = (None, REQUEST_LOST, REPLY_LOST, AWAY, "puts", "deletes", "creates")


@pytest.mark.parametrize("first", TURNS)
@pytest.mark.parametrize("write", ["put", "create", "delete"])
async def test_what_is_certain_is_true_whatever_happens(write: str, first: str | None) -> None:
    """All histories of four calls, each of which fails, or comes after somebody else's act, or goes well.

    A node that was deleted and made again can't be told from what it was: no path of a ledger is ever used twice.
    """
    for rest in itertools.product(TURNS, repeat=3):
        tree, other = tree_with(None if write == "create" else BEFORE)
        acts = {"puts": other.puts(THEIRS), "deletes": other.deletes, "creates": other.creates(THEIRS)}
        history = (first, *rest)
        if write != "create" and {"deletes", "creates"} <= set(history):
            continue
        store = Troubled(tree, [acts.get(turn, turn) if turn is not None else None for turn in history])
        outcome: object
        if write == "put":
            outcome = await put_certainly(store, NODE, OURS, 0, attempts_max=3)
        elif write == "create":
            outcome = await create_certainly(store, Create(NODE, OURS), attempts_max=3)
        else:
            outcome = await delete_certainly(store, NODE, 0, attempts_max=3)
        if isinstance(outcome, Done | Gone):
            assert store.applied or (write == "delete" and "deletes" in history), history
        elif isinstance(outcome, Exists | Changed | NotDone):
            assert not store.applied or NODE not in tree.paths or "deletes" in history, history
        elif isinstance(outcome, Missing):
            assert not store.applied or NODE not in tree.paths, history


# --- what is made of them -------------------------------------------------------------------------------------------


async def test_a_number_whose_reply_was_lost_is_skipped() -> None:
    tree, _ = tree_with(None)
    tree.apply(Create("/ids", b""), 0)
    store = Troubled(tree, [REPLY_LOST, REQUEST_LOST])
    assert await take_number(store, "/ids", "token", attempts_max=3) == (1, "/ids/ID-0000000001")
    store.script.extend([REPLY_LOST, AWAY])
    failure = await take_number(store, "/ids", "token", attempts_max=3)
    assert isinstance(failure, NotDone)
    store.script.extend([REPLY_LOST])
    assert isinstance(await take_number(store, "/ids", "token", attempts_max=1), NotDone)
    assert await take_number(store, "/none", "token", attempts_max=1) == Missing("/none")


async def test_a_place_in_a_line_is_taken_once_or_certainly_given_up() -> None:
    tree, _ = tree_with(None)
    tree.apply(Create("/line", b""), 0)
    store = Troubled(tree, [REPLY_LOST])
    place = await take_turn(store, "/line", "token", b"me", attempts_max=3)
    assert place == "/line/token-0000000000", "the one whose reply was lost is found again"
    store.script.extend([REQUEST_LOST, None])
    assert await take_turn(store, "/line", "other", b"me", attempts_max=3) == "/line/other-0000000001"
    for token, script in (
        ("none", [AWAY]),
        ("third", [REPLY_LOST, AWAY]),
        ("none", [REQUEST_LOST] * 6),  # a read is not lost by that
    ):
        store.script.clear()
        store.script.extend(script)
        assert isinstance(await take_turn(store, "/line", token, b"me", attempts_max=2), NotDone), script
    store.script.clear()
    assert await take_turn(store, "/none", "token", b"me", attempts_max=2) == Missing("/none")
    store.script.extend([AWAY])
    assert isinstance(await leave_line(store, "/line", "third"), NotDone)
    assert await leave_line(store, "/line", "third") == Gone()
    assert await tree.session().children("/line") == ["other-0000000001", "token-0000000000"]


async def test_a_node_that_is_made_if_another_one_is_as_expected_says_which_was_not() -> None:
    tree, _ = tree_with(BEFORE)
    store = Troubled(tree)
    made = await create_certainly(store, Create("/a", OURS), Check(NODE, 7), attempts_max=ATTEMPTS)
    assert made == Missing(NODE, 1)
    assert not await store.exists("/a")


async def test_a_path_is_made_by_whomever() -> None:
    tree, _ = tree_with(None)
    other = Somebody(tree, "/a")
    store = Troubled(tree, [None, other.creates(b"")])
    assert await ensure_path(store, "/a/b/c", attempts_max=1) == Done(0)
    assert await store.exists("/a/b/c")
    store.script.extend([AWAY])
    assert isinstance(await ensure_path(store, "/x", attempts_max=1), NotDone)
    store.script.extend([None, REPLY_LOST])
    assert isinstance(await ensure_path(store, "/x", attempts_max=1), NotDone)
    store.script.extend([None, None, Somebody(tree, "/y").deletes, Somebody(tree, "/y").deletes])
    gone = await ensure_path(store, "/y/z", attempts_max=1)
    assert isinstance(gone, NotDone)
    assert "somebody deletes" in gone.error.message


async def test_a_refusal_that_is_a_value_holds_nobody() -> None:
    answer = await attempt(tree_with(None)[0].session().multi([Create("/nowhere/n", b"")]))
    assert isinstance(answer, NoNode)
    assert (answer.node, answer.index) == ("/nowhere/n", 0)
    assert (answer.__traceback__, answer.__context__, answer.__cause__) == (None, None, None)


def test_the_error_for_a_user_is_a_new_one_that_says_what_is_known() -> None:
    shared = ClientClosedError("the session is closed", path="/p", bookie="b")
    for outcome, unknown in ((NotDone(shared), False), (Unknown(shared), True)):
        error = to_error(outcome, ledger_id=7)
        assert error is not shared
        assert isinstance(error, ClientClosedError)
        assert (error.message, error.ledger_id, error.path, error.bookie) == (shared.message, 7, "/p", "b")
        assert (error.outcome_unknown, error.retriable) == (unknown, False)
        assert error.__cause__ is shared
    assert not shared.outcome_unknown
    retriable = to_error(NotDone(MetadataUnavailableError("away", retriable=False)), bookie="c")
    assert (retriable.retriable, retriable.bookie) == (False, "c")
    assert escalate_unknown(NotDone(shared), True) == Unknown(shared)
    assert escalate_unknown(NotDone(shared), False) == NotDone(shared)
    assert escalate_unknown(Unknown(shared), False) == Unknown(shared)
