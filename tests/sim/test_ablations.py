"""The simulator finds what it is there for: each of these defects, which were in the code once, fails one of its runs.

The defect is planted as it was. Some seeds are known to find it, and pass without it; that some of the first 200 do is
looked at exhaustively.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from bkpy.bookie.connection.keys import Keys
from bkpy.metadata.store import resolve
from bkpy.metadata.store.outcome import NotDone, PutOutcome, Unknown
from bkpy.storage import shard
from bkpy.storage.checkpoint import flush
from bkpy.storage.ledgers.ledgers import Ledgers
from tests.hooks import cache_of, load_states, loading_of, take_for_unseen

from .runs import Range, play

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.storage.ledgers.info import LedgerInfo

Ablation = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def evicting_what_is_asked_for() -> Iterator[None]:
    """A ledger's state is evicted for the sake of another one of the same request, and then it counts as never seen."""

    async def load(ledgers: Ledgers, ledger_ids: Collection[int]) -> dict[int, LedgerInfo | None]:
        cached = cache_of(ledgers).get
        missing = [ledger_id for ledger_id in ledger_ids if cached(ledger_id) is None]
        if missing:
            async with loading_of(ledgers):
                cache_of(ledgers).trim()
                await load_states(ledgers, {ledger_id for ledger_id in missing if cached(ledger_id) is None})
        return {ledger_id: cached(ledger_id) for ledger_id in ledger_ids}

    introduce = Ledgers.introduce

    def introduced(ledgers: Ledgers, ledger_id: int, key: bytes, shard: int | None = None) -> LedgerInfo:
        take_for_unseen(ledgers, ledger_id)
        return introduce(ledgers, ledger_id, key, shard)

    def authorise(keys: Keys, ledger_id: int) -> None:
        keys.authorised.add(ledger_id)

    with (
        patch.object(Ledgers, "load", load),
        # A second line: a connection that has shown a ledger's key isn't believed that the ledger is new.
        patch.object(Keys, "authorise", authorise),
        # And a third: a state that is made up is refused, and never written.
        patch.object(Ledgers, "introduce", introduced),
        patch.object(flush, "check_no_less", lambda ledger_id, state, row: None),
    ):
        yield


@contextlib.contextmanager
def doubt_taken_for_failure() -> Iterator[None]:
    """A change was stored and its reply lost, and the store is away when it is read back: nothing was stored, then."""
    whose_value = resolve.whose_value

    async def answered(store: MetadataStore, path: str, data: bytes, expected_version: int) -> PutOutcome:
        outcome = await whose_value(store, path, data, expected_version)
        return NotDone(outcome.error) if isinstance(outcome, Unknown) else outcome

    with patch.object(resolve, "whose_value", answered):
        yield


@contextlib.contextmanager
def collected_ledgers_forgotten() -> Iterator[None]:
    """S12: a ledger that was collected is one that was never seen."""
    with patch.object(shard, "has_tombstone", lambda txn, ledger_id: False):
        yield


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scenario", "without", "seeds"),
    [
        ("crowd", evicting_what_is_asked_for, (54,)),
        ("failover", doubt_taken_for_failure, (13,)),
        ("standard", collected_ledgers_forgotten, (0, 2)),
    ],
)
def test_the_defect_is_found(scenario: str, without: Ablation, seeds: Sequence[int]) -> None:
    found = Range()
    for seed in seeds:
        with without():
            play(scenario, seed, found)
    assert found.failed, f"{without.__name__} passed unnoticed"
    for seed in found.failed:
        assert play(scenario, seed, Range()) is None, "it fails without the defect, too"


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)  # of 200 runs, where none of them finds it
@pytest.mark.parametrize(
    ("scenario", "without"),
    [
        ("crowd", evicting_what_is_asked_for),
        ("failover", doubt_taken_for_failure),
        ("standard", collected_ledgers_forgotten),
    ],
)
def test_the_defect_is_found_by_some_of_the_first_200_seeds(scenario: str, without: Ablation) -> None:
    found = Range()
    for seed in range(200):
        with without():
            play(scenario, seed, found)
        if found.failed:
            break
    assert found.failed
