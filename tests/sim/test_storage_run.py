"""One bookie's storage through many lives and rebuilds: nothing is denied, and it always starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.storage.tools.rebuild import builder

from .runs import Range, play, play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.mark.thorough
@pytest.mark.scenario(55)
@pytest.mark.parametrize("seeds", seeds_of("storage", block=20, blocks=50))
def test_nothing_is_denied_whatever_becomes_of_a_storage(seeds: Sequence[int]) -> None:
    play_all("storage", seeds)


class NothingKept:
    """Instead of a scan of a journal file that is kept as a log."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.damages: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.thorough
def test_the_run_notices_a_rebuild_that_leaves_batches_out() -> None:
    found = Range()
    with patch.object(builder, "KeptFileScan", NothingKept):
        for seed in (70, *range(30)):
            play("storage", seed, found)
            if found.failed:
                return
    raise AssertionError("nothing was noticed")
