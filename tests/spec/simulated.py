"""Traces of simulated runs: their metadata store, bookies and clients are watched while they are played."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.store import Create, Delete, Put
from tests.sim.cluster import ROOT
from tests.sim.loop import CURRENT
from tests.sim.runs import RUNS

from .telling import telling
from .traces import Trace, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.sim.world import World

_LEDGERS = {LONG_HIERARCHICAL.path_of(ROOT, n): n for n in range(2000)}  # by path, those that a run may have


@contextlib.contextmanager
def watching(watch: Watch, world: World) -> Iterator[None]:
    """The world as it is patched already: to be entered when its run has begun."""
    tree = world.metadata
    apply, apply_all = tree.apply, tree.apply_all
    inside = False

    def here() -> str:
        incarnation = CURRENT.get()
        assert incarnation is not None
        return next(name for name, host in world.hosts.items() if host.address == incarnation.address)

    def written(operation: object) -> None:
        if isinstance(operation, Create | Put | Delete) and (ledger_id := _LEDGERS.get(operation.path)) is not None:
            watch.written(ledger_id, None if isinstance(operation, Delete) else operation.data)

    def watched_apply(operation: Any, *args: Any) -> Any:
        result = apply(operation, *args)
        if not inside:
            written(operation)
        return result

    def watched_apply_all(operations: Sequence[Any], *args: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            result = apply_all(operations, *args)
        finally:
            inside = False
        for operation in operations:
            written(operation)
        return result

    with (
        patch.object(tree, "apply", watched_apply),
        patch.object(tree, "apply_all", watched_apply_all),
        telling(watch, here),
    ):
        yield


def watched(scenario: str, seed: int) -> tuple[Watch, Callable[[], None]]:
    """Who watches a run, and what plays it; that raises what the run raises."""
    cluster, run = RUNS[scenario](seed)
    watch = Watch()

    async def play() -> None:
        with watching(watch, cluster.world):
            await run

    return watch, lambda: cluster.run(play())


def traces_of(scenario: str, seed: int) -> list[Trace]:
    """Play a run; the traces of its ledgers that count."""
    watch, play = watched(scenario, seed)
    play()
    return watch.counting()
