"""A bookie that comes back without what it had denies nothing, and gets it back, whatever else fails meanwhile."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.storage import losses
from bkpy.storage.ledgers import ledgers
from bkpy.storage.losses import Losses

from .runs import Range, play, play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


@pytest.mark.thorough
@pytest.mark.scenario(52)
@pytest.mark.parametrize("seeds", seeds_of("rebuilding", block=5, blocks=20, often=2))
def test_a_bookie_gets_back_what_it_lost_and_denies_nothing_meanwhile(seeds: Sequence[int]) -> None:
    play_all("rebuilding", seeds)


def denying_what_was_never_seen() -> AbstractContextManager[Any]:
    """Rule 34: what isn't provably created after the restart stays unknown."""
    return patch.object(ledgers, "denies_unseen", lambda ledger_id, **known: True)


@contextmanager
def ending_limbo_unverified() -> Iterator[None]:
    """Rule 34: limbo ends when every id that names the bookie is there."""

    async def missing_ranges(*args: Any) -> list[Any]:
        return []

    with ExitStack() as stack:
        stack.enter_context(patch.object(Losses, "missing_ranges", missing_ranges))
        stack.enter_context(patch.object(losses, "ends_limbo", lambda verdict: True))
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("without", [denying_what_was_never_seen, ending_limbo_unverified])
def test_without_the_rule_it_is_noticed(without: Callable[[], AbstractContextManager[Any]]) -> None:
    found = Range()
    with without():
        for seed in (3, 4, 0, 1, 2):
            play("rebuilding", seed, found)
            if found.failed:
                return
    raise AssertionError("nothing was noticed")
