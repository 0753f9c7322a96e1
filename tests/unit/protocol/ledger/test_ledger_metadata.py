"""The ledger metadata value: what can't be constructed, each transition in each state, the stored form."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.errors import ConfigError, CorruptDataError, LedgerClosedError, UnsupportedVersionError
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import DIGESTS, TRANSITIONS, Fragment, LedgerMetadata, LedgerState

GOLDEN = Path(__file__).parents[3] / "golden" / "metadata"


def metadata(**changes: Any) -> LedgerMetadata:
    fields: dict[str, Any] = {
        "ledger_id": 42,
        "state": LedgerState.OPEN,
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "digest": "crc32c",
        "ledger_key": bytes(range(32)),
        "fragments": (Fragment(0, ("b1", "b2", "b3")), Fragment(10, ("b1", "b4", "b3"))),
        "created_ms": 1_700_000_000_123,
        "owner_token": "client-7/1",
        "custom_metadata": {"app": b"orders", "\u00e9": b"\x00\xff"},
    }
    return LedgerMetadata(**(fields | changes))


GOLDEN_VALUES = {
    "open.json": metadata(),
    "in-recovery.json": metadata(caller_ids=True, deferred_sync=True).in_recovery(),
    "closed.json": metadata(digest="hmac-sha256").closed(19, 2048),
    "holes.json": metadata(accepted_loss=AcceptedLoss(1_700_000_000_000, 18, 20, {"b4": "it is gone"}))
    .closed(19, 2048)
    .with_hole(4, 5)
    .with_hole(19, 19),
    "loss-accepted.json": metadata(accepted_loss=AcceptedLoss(1_700_000_000_000, 18, 20, {"b4": "it is gone"})).closed(
        19, 2048
    ),
}


# --- construction -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"ledger_id": -1},
        {"ledger_id": 2**63},
        {"ack_quorum": 0},
        {"ack_quorum": 4},
        {"write_quorum": 4},
        {"write_quorum": 1},
        {"ensemble_size": 2},
        {"ensemble_size": 4},
        {"digest": "md5"},
        {"ledger_key": b"short"},
        {"fragments": ()},
        {"fragments": (Fragment(1, ("b1", "b2", "b3")),)},
        {"fragments": (Fragment(0, ("b1", "b2", "b3")), Fragment(0, ("b1", "b2", "b4")))},
        {"fragments": (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2")))},
        {"last_entry": 3},
        {"length": 3},
        {"state": LedgerState.IN_RECOVERY, "last_entry": 12},
        {"state": LedgerState.CLOSED, "last_entry": 8},
        {"state": LedgerState.CLOSED, "last_entry": 12, "length": -1},
        {"state": LedgerState.CLOSED, "fragments": (Fragment(0, ("b1", "b2", "b3")),), "length": 1},
    ],
)
def test_a_value_that_breaks_an_invariant_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        metadata(**changes)


@pytest.mark.parametrize(("first", "bookies"), [(-1, ("a", "b")), (0, ("a", "a")), (0, ("a", ""))])
def test_a_fragment_that_is_none_cannot_be_made(first: int, bookies: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Fragment(first, bookies)


def test_a_value_shares_nothing_that_can_change_and_can_be_hashed_and_pickled() -> None:
    custom = {"app": b"orders"}
    value = metadata(custom_metadata=custom)
    custom["app"] = b"changed"
    assert value.custom_metadata == {"app": b"orders"}
    assert hash(value) == hash(metadata(custom_metadata={"app": b"orders"}))
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.length = 3  # type: ignore[misc]


def test_the_ledger_key_is_not_printed() -> None:
    assert repr(bytes(range(32))) not in repr(metadata())


# --- transitions --------------------------------------------------------------------------------------------

IN_STATE = {
    LedgerState.OPEN: metadata(),
    LedgerState.IN_RECOVERY: metadata().in_recovery(),
    LedgerState.CLOSED: metadata().closed(19, 2048),
}
ACTIONS = {
    "in_recovery": lambda value: value.in_recovery(),
    "closed": lambda value: value.closed(30, 3000),
    "new_fragment": lambda value: value.new_fragment(20, ("b1", "b5", "b3")),
    "replace_bookie": lambda value: value.replace_bookie(0, 1, "b9"),
}


def test_the_table_of_transitions_is_total() -> None:
    assert set(TRANSITIONS) == set(ACTIONS)
    assert all(set(row) == set(LedgerState) for row in TRANSITIONS.values())


@pytest.mark.parametrize("state", list(LedgerState))
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_each_transition_in_each_state(state: LedgerState, action: str) -> None:
    before = IN_STATE[state]
    copy = before.encode()
    expected = TRANSITIONS[action][state]
    if expected is None:
        with pytest.raises(LedgerClosedError, match="ledger 42"):
            ACTIONS[action](before)
    else:
        assert ACTIONS[action](before).state is expected
    assert before.encode() == copy


def test_recovery_of_a_ledger_in_recovery_changes_nothing() -> None:
    value = metadata().in_recovery()
    assert value.in_recovery() is value


def test_closing_sets_the_end() -> None:
    closed = metadata().closed(9, 77)
    assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 9, 77)
    with pytest.raises(ConfigError, match="can't end at 8"):
        metadata().closed(8, 77)
    empty = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")),)).closed(-1, 0)
    assert (empty.last_entry, empty.length) == (-1, 0)


def test_replacing_a_bookie_touches_that_one_only() -> None:
    value = metadata().replace_bookie(0, 1, "b9")
    assert [fragment.bookies for fragment in value.fragments] == [("b1", "b9", "b3"), ("b1", "b4", "b3")]
    for arguments in ((0, 1, "b3"), (2, 0, "b9"), (-1, 0, "b9"), (0, 3, "b9"), (0, 0, "")):
        with pytest.raises(ConfigError):
            metadata().replace_bookie(*arguments)


def test_a_new_fragment_follows_or_replaces_the_last_one() -> None:
    new = ("b5", "b6", "b7")
    assert metadata().new_fragment(15, new).fragments == (*metadata().fragments, Fragment(15, new))
    assert metadata().new_fragment(10, new).fragments == (metadata().fragments[0], Fragment(10, new))
    for first in (9, 0, -1):
        with pytest.raises(ConfigError):
            metadata().new_fragment(first, new)
    with pytest.raises(ConfigError):
        metadata().new_fragment(15, ("b5", "b6"))


@pytest.mark.parametrize(("entry_id", "index"), [(0, 0), (9, 0), (10, 1), (11, 1), (10**9, 1)])
def test_the_fragment_of_an_entry(entry_id: int, index: int) -> None:
    value = metadata()
    assert value.fragment_of(entry_id) is value.fragments[index]
    with pytest.raises(ConfigError):
        value.fragment_of(-1)


def test_a_closed_ledger_keeps_its_end_whatever_is_tried() -> None:
    closed = metadata().in_recovery().closed(19, 2048)
    for action in (closed.in_recovery, lambda: closed.closed(19, 2048), lambda: closed.closed(30, 3000)):
        with pytest.raises(LedgerClosedError, match="closed at entry 19"):
            action()
    with pytest.raises(LedgerClosedError, match="new_fragment"):
        closed.new_fragment(15, ("b5", "b6", "b7"))
    moved = closed.replace_bookie(1, 1, "b9")
    assert (moved.state, moved.last_entry, moved.length) == (LedgerState.CLOSED, 19, 2048)


def test_what_a_recovery_stores_at_once_is_what_it_did_step_by_step() -> None:
    """New fragments, the last of them replaced by another, and the end."""
    value = metadata().in_recovery().new_fragment(12, ("b1", "b4", "b5"))
    value = value.new_fragment(14, ("b1", "b6", "b5")).new_fragment(14, ("b7", "b6", "b5")).closed(13, 99)
    assert [(fragment.first_entry, fragment.bookies) for fragment in value.fragments] == [
        (0, ("b1", "b2", "b3")),
        (10, ("b1", "b4", "b3")),
        (12, ("b1", "b4", "b5")),
        (14, ("b7", "b6", "b5")),
    ]
    assert value.last_entry == 13  # nothing is behind the last change


def test_a_transition_keeps_everything_that_it_is_not_about() -> None:
    before = metadata(unknown={"later": 1}, caller_ids=True, deferred_sync=True)
    about = {"state", "last_entry", "length", "fragments"}
    for action in ACTIONS.values():
        after = action(before)
        for field in dataclasses.fields(LedgerMetadata):
            if field.name not in about:
                assert getattr(after, field.name) == getattr(before, field.name)


_NAMES = [f"b{i}" for i in range(6)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("in_recovery")),
            st.tuples(st.just("closed"), st.integers(-2, 12), st.integers(-1, 50)),
            st.tuples(
                st.just("new_fragment"), st.integers(-1, 12), st.permutations(_NAMES).map(lambda p: tuple(p[:3]))
            ),
            st.tuples(st.just("replace_bookie"), st.integers(0, 4), st.integers(0, 2), st.sampled_from(_NAMES)),
        ),
        max_size=12,
    )
)
def test_any_sequence_of_transitions_leaves_a_good_value_and_one_end(steps: list[tuple[Any, ...]]) -> None:
    value = metadata(fragments=(Fragment(0, ("b0", "b1", "b2")),))
    for name, *arguments in steps:
        before = value
        try:
            value = getattr(value, name)(*arguments)
        except (ConfigError, LedgerClosedError):
            assert value is before
            continue
        assert value.state is TRANSITIONS[name][before.state]
        assert LedgerMetadata.decode(value.ledger_id, value.encode()) == value
        starts = [fragment.first_entry for fragment in value.fragments]
        assert starts == sorted(set(starts))
        assert starts[0] == 0
        assert all(len(set(fragment.bookies)) == 3 for fragment in value.fragments)
        assert (value.last_entry >= starts[-1] - 1) if value.state is LedgerState.CLOSED else (value.last_entry == -1)
        if before.state is LedgerState.CLOSED:
            assert (value.state, value.last_entry, value.length) == (before.state, before.last_entry, before.length)
        if name == "new_fragment":  # what is below it stays where it was
            kept = [fragment for fragment in before.fragments if fragment.first_entry < arguments[0]]
            assert list(value.fragments[:-1]) == kept
            assert value.fragments[-1] == Fragment(arguments[0], arguments[1])


# --- the stored form ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(GOLDEN_VALUES))
def test_the_stored_form_is_the_golden_one(name: str) -> None:
    stored = (GOLDEN / name).read_bytes()
    assert GOLDEN_VALUES[name].encode() == stored
    assert LedgerMetadata.decode(42, stored) == GOLDEN_VALUES[name]


@pytest.mark.parametrize(
    "damage",
    [
        1,
        [],
        {},
        {"at_ms": True},
        {"seen": "3"},
        {"bookies": []},
        {"bookies": {"b": 1}},
        {"holes": [[0, 8]]},  # no whole fragment
        {"holes": [[1, 9]]},
        {"holes": [[0, 9], [10, 19]]},
        {"holes": [[10, 19], [0, 9]]},
        {"holes": [[10, 9]]},
        {"holes": [[0, True]]},
        {"holes": [0, 9]},
        {"holes": 1},
    ],
    ids=repr,
)
def test_a_damaged_record_of_an_accepted_loss_is_refused(damage: Any) -> None:
    stored = json.loads(GOLDEN_VALUES["loss-accepted.json"].encode())
    stored["accepted_loss"] = stored["accepted_loss"] | damage if damage and isinstance(damage, dict) else damage
    with pytest.raises(CorruptDataError):
        LedgerMetadata.decode(42, json.dumps(stored).encode())


@pytest.mark.parametrize("stored", [b"[]", b"1", b"null", b'"x"'])
def test_what_is_no_object_is_no_metadata(stored: bytes) -> None:
    with pytest.raises(CorruptDataError, match="expected a JSON object"):
        LedgerMetadata.decode(42, stored)


def test_only_a_closed_ledger_has_holes() -> None:
    value = GOLDEN_VALUES["holes.json"]
    assert value.accepted_loss is not None
    assert value.accepted_loss.holes
    with pytest.raises(ConfigError, match="only a closed ledger has holes"):
        dataclasses.replace(value, state=LedgerState.OPEN, last_entry=-1, length=0)


@pytest.mark.parametrize(
    ("hole", "firsts"),
    [
        ((0, 9), [0, 10]),
        ((10, 19), [0, 10]),
        ((0, 0), [0, 1, 10]),
        ((9, 9), [0, 9, 10]),
        ((3, 4), [0, 3, 5, 10]),
        ((8, 11), [0, 8, 10, 12]),
        ((19, 19), [0, 10, 19]),
        ((0, 19), [0, 10]),
    ],
)
def test_a_hole_is_whole_fragments_that_keep_their_bookies(hole: tuple[int, int], firsts: list[int]) -> None:
    before = GOLDEN_VALUES["loss-accepted.json"]
    value = before.with_hole(*hole)
    assert [fragment.first_entry for fragment in value.fragments] == firsts
    for entry_id in range(20):
        fragment = value.fragment_of(entry_id)
        assert fragment.bookies == before.fragment_of(entry_id).bookies
        assert value.is_hole(value.fragments.index(fragment)) == (hole[0] <= entry_id <= hole[1])
    assert value.accepted_loss is not None
    assert value.accepted_loss.holes == (hole,)
    assert LedgerMetadata.decode(42, value.encode()) == value
    for number in range(len(value.fragments)):
        if value.is_hole(number):
            with pytest.raises(ConfigError, match="nobody has the entries of a hole"):
                value.replace_bookie(number, 0, "b8")
        else:
            assert "b8" in value.replace_bookie(number, 0, "b8").needed_bookies
    assert value.with_hole(*hole) == value
    whole = value.with_hole(0, 19)
    assert whole.accepted_loss is not None
    assert whole.accepted_loss.holes == ((0, 19),)
    assert not whole.needed_bookies


def test_only_a_closed_ledger_whose_loss_was_accepted_has_holes() -> None:
    for value in (GOLDEN_VALUES["closed.json"], metadata(accepted_loss=AcceptedLoss(1, 2, 3, {}))):
        with pytest.raises(ConfigError):
            value.with_hole(0, 0)
    for first, last in ((-1, 0), (3, 2), (19, 20)):
        with pytest.raises(ConfigError):
            GOLDEN_VALUES["loss-accepted.json"].with_hole(first, last)


def test_an_accepted_loss_survives_a_rewrite_with_what_is_not_known_of_it() -> None:
    stored = json.loads(GOLDEN_VALUES["loss-accepted.json"].encode())
    stored["accepted_loss"]["by"] = {"name": "somebody"}
    value = LedgerMetadata.decode(42, json.dumps(stored).encode())
    rewritten = json.loads(value.replace_bookie(0, 0, "b8").encode())
    assert rewritten["accepted_loss"] == stored["accepted_loss"]


def test_unknown_fields_survive_a_rewrite() -> None:
    stored = json.loads(metadata().encode())
    stored["later"] = {"deep": [1, 2]}
    stored["fragments"][0]["zone"] = "z"
    value = LedgerMetadata.decode(42, json.dumps(stored).encode())
    rewritten = json.loads(value.replace_bookie(0, 0, "b8").closed(11, 5).encode())
    assert rewritten["later"] == {"deep": [1, 2]}
    assert rewritten["fragments"][0] == {"first_entry": 0, "bookies": ["b8", "b2", "b3"], "zone": "z"}
    assert LedgerMetadata.decode(42, json.dumps(rewritten).encode()).unknown == {"later": {"deep": [1, 2]}}


def test_a_newer_format_is_refused_and_says_what_to_do() -> None:
    stored = json.loads(metadata().encode()) | {"version": 2}
    with pytest.raises(UnsupportedVersionError, match=r"version 2.*upgrade.*ledger 42"):
        LedgerMetadata.decode(42, json.dumps(stored).encode())
    with pytest.raises(UnsupportedVersionError):
        LedgerMetadata.decode(42, b'{"version": 9, "nothing else": "is understood"}')


DAMAGE: list[Any] = [None, -5, 10**30, 1.5, True, "", "x", "\u00e9", [], [1], [{}], {}, {"a": 1}, {"a": "!"}]


@pytest.mark.parametrize("field", sorted(json.loads(metadata().encode())))
def test_a_damaged_field_is_never_taken_for_a_good_one(field: str) -> None:
    good = json.loads(metadata().encode())
    missing = {name: value for name, value in good.items() if name != field}
    with pytest.raises(CorruptDataError, match="ledger 42"):
        LedgerMetadata.decode(42, json.dumps(missing).encode())
    for damage in DAMAGE:
        if type(damage) is type(good[field]) and field in ("caller_ids", "deferred_sync", "owner_token", "created_ms"):
            continue  # any value of that type is a good one
        if damage == {} and field == "custom_metadata":
            continue
        expected = UnsupportedVersionError if field == "version" and damage == 10**30 else CorruptDataError
        with pytest.raises(expected, match="ledger 42"):
            LedgerMetadata.decode(42, json.dumps(good | {field: damage}).encode())


@given(st.binary(max_size=200))
def test_random_bytes_are_never_taken_for_metadata(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        LedgerMetadata.decode(1, data)


@given(st.data())
def test_every_prefix_is_damage(data: st.DataObject) -> None:
    stored = metadata().encode()
    cut = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CorruptDataError):
        LedgerMetadata.decode(42, stored[:cut])


_IDS = st.lists(st.text("abc123.-", min_size=1, max_size=6), min_size=5, max_size=5, unique=True)


@pytest.mark.thorough
@given(
    ledger_id=st.integers(0, 2**63 - 1),
    quorums=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)).map(lambda q: sorted(q, reverse=True)),
    digest=st.sampled_from(DIGESTS),
    key=st.binary(min_size=32, max_size=32),
    starts=st.sets(st.integers(1, 2**62), max_size=4),
    bookies=_IDS,
    custom=st.dictionaries(st.text(), st.binary()),
    token=st.text(),
    end=st.none() | st.tuples(st.integers(0, 100), st.integers(0, 2**60)),
)
def test_what_is_stored_comes_back(
    ledger_id: int,
    quorums: list[int],
    digest: str,
    key: bytes,
    starts: set[int],
    bookies: list[str],
    custom: dict[str, bytes],
    token: str,
    end: tuple[int, int] | None,
) -> None:
    fragments = tuple(Fragment(first, tuple(bookies[: quorums[0]])) for first in (0, *sorted(starts)))
    value = LedgerMetadata(
        ledger_id=ledger_id,
        state=LedgerState.OPEN,
        ensemble_size=quorums[0],
        write_quorum=quorums[1],
        ack_quorum=quorums[2],
        digest=digest,
        ledger_key=key,
        fragments=fragments,
        owner_token=token,
        custom_metadata=custom,
    )
    if end is not None:
        value = value.closed(fragments[-1].first_entry + end[0], end[1])
    assert LedgerMetadata.decode(ledger_id, value.encode()) == value
    assert value.encode() == LedgerMetadata.decode(ledger_id, value.encode()).encode()
