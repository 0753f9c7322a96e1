"""Adds, deletions, checkpoints, restarts and crashes in any order against a dictionary of what was acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.storage.support import (
    SMALLEST,
    Batch,
    Host,
    add,
    check_living_bytes_between_checkpoints,
    read_all,
    reclaim,
)
from tests.unit.storage.support import settings as bookie_settings

from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import Sequence

LEDGERS = 3
DIRECTORIES_MAX = 4

batches = st.builds(
    lambda ledger_id, first, count, stride, size: (ledger_id, first, count, stride, size),
    st.integers(0, LEDGERS - 1),
    st.integers(0, 120),
    st.integers(1, 30),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.sampled_from((0, 3, 400, 3000)),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.booleans()),
        st.tuples(st.just("add"), st.lists(batches, min_size=1, max_size=4)),
        st.tuples(st.just("checkpoint"), st.none()),
        st.tuples(st.just("crash"), st.booleans()),
        st.tuples(st.just("close"), st.none()),
        st.tuples(st.sampled_from(("delete", "delete and die")), st.integers(0, LEDGERS - 1)),
        st.tuples(st.just("reclaim"), st.sampled_from((0.0, 0.5, 0.99))),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 200), st.integers(0, 80), st.integers(1, 20_000))),
    ),
    max_size=12,
)


async def run(script: list[tuple[str, object]], journals: int, ledgers: int, **bounds: Any) -> None:
    host = Host(settings=bookie_settings(journals=journals, ledgers=ledgers, **{"block_bytes": 4096, **bounds}))
    storage = await host.boot()
    model: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    for number, (action, argument) in enumerate([*script, ("crash", True), ("close", None)]):
        if action == "add":
            frame = [
                Batch(ledger_id, first, count, stride, b"%d:" % (100 * number + i) + b"x" * size)
                for i, (ledger_id, first, count, stride, size) in enumerate(argument)  # type: ignore[arg-type]
            ]
            await storage.states({batch.ledger_id for batch in frame})
            await add(storage, *frame)
            for batch in frame:
                model[batch.ledger_id].update(dict.fromkeys(batch.ids, batch.payload))
        elif action == "checkpoint":
            await storage.checkpoint()
        elif action == "crash":
            if argument:
                host.disk.power_cut()
            else:
                host.disk.crash()
            storage = await host.boot()
        elif action == "grow":
            if argument:
                host.disk.power_cut()
            else:
                host.disk.crash()
            directories = host.settings.ledger_directories
            if len(directories) < DIRECTORIES_MAX:
                more = [*directories, f"/b/ledgers{len(directories)}"]
                host.settings = host.settings.model_copy(update={"ledger_directories": more})
            storage = await host.boot()
        elif action in ("delete", "delete and die"):
            hidden = await hide(storage, argument)  # type: ignore[arg-type]
            if hidden is not None:
                assert await hidden.delete()
            model[argument] = {}  # type: ignore[index]
            if action == "delete and die":  # before anything of it is in an index
                host.disk.crash()
                storage = await host.boot()
        elif action == "reclaim":
            await reclaim(storage, argument)  # type: ignore[arg-type]
        elif action == "close":
            await storage.close()
            storage = await host.boot()
            assert host.reports.replayed_frames == journals, "only clean-stop frames are left to be read"
        storage.check_invariants()
        await check_living_bytes_between_checkpoints(storage)
        first, length, bytes_max = argument if action == "read" else (0, 250, 1 << 20)  # type: ignore[misc]
        for ledger_id, entries in list(model.items()):
            wanted = {i: entries[i] for i in sorted(entries) if first <= i <= first + length}
            assert await read_all(storage, ledger_id, first, first + length, bytes_max) == (wanted, set())
    assert not host.reports.damages


@pytest.mark.thorough
@pytest.mark.scenario(47)
@given(actions)
@examples(60)
def test_one_journal_and_one_ledger_directory(script: list[tuple[str, object]]) -> None:
    asyncio.run(run(script, 1, 1))


@pytest.mark.thorough
@pytest.mark.scenario(47)
@given(actions)
@examples(40)
def test_two_journals_and_three_ledger_directories(script: list[tuple[str, object]]) -> None:
    asyncio.run(run(script, 2, 3))


@pytest.mark.thorough
@given(actions, st.integers(1, 2), st.sampled_from((0.0, 0.7)))
@examples(60)
def test_batches_of_any_size_stay_in_the_journal(script: list[tuple[str, object]], journals: int, share: float) -> None:
    asyncio.run(run(script, journals, 1, journal_run_bytes_min=1, journal_run_share_min=share, journal_max_backups=0))


@pytest.mark.thorough
@given(actions)
@examples(30)
def test_every_bound_at_its_smallest(script: list[tuple[str, object]]) -> None:
    asyncio.run(run(script, 2, 2, **SMALLEST))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100))
def test_long_runs(seed: int) -> None:
    script = random_script(random.Random(seed), LEDGERS, (*KINDS, "read", "close", "checkpoint"))
    asyncio.run(run(script, 1 + seed % 2, 1 + seed % 3, journal_run_bytes_min=(1, 1 << 16)[seed % 5 > 1]))


@pytest.mark.thorough
@pytest.mark.scenario(47)
@pytest.mark.parametrize(
    "seed", [14, 44, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (50, 64, *range(100, 200)))]
)
def test_more_ledgers_than_states_and_directories_that_are_added(seed: int) -> None:
    script = random_script(random.Random(seed), 5, (*KINDS, "delete and die", "delete and die", "grow"))
    asyncio.run(run(script, 1 + seed % 2, 1, ledger_states_max=1 + seed % 2, journal_max_backups=0))


KINDS = ("add", "add", "add", "add", "crash", "delete", "reclaim")


def random_script(rng: random.Random, ledgers: int, kinds: Sequence[str]) -> list[tuple[str, object]]:
    script: list[tuple[str, object]] = []
    for _ in range(60):
        kind = rng.choice(kinds)
        if kind == "add":
            frame = [
                (
                    rng.randrange(ledgers),
                    rng.randrange(200),
                    rng.randrange(1, 40),
                    rng.choice((1, 1, 2, 5)),
                    rng.choice((0, 900)),
                )
                for _ in range(rng.randrange(1, 5))
            ]
            script.append((kind, frame))
        elif kind in ("delete", "delete and die"):
            script.append((kind, rng.randrange(ledgers)))
        elif kind == "read":
            script.append((kind, (rng.randrange(200), rng.randrange(80), rng.randrange(1, 20_000))))
        elif kind == "reclaim":
            script.append((kind, rng.choice((0.0, 0.5, 0.99))))
        else:
            script.append((kind, rng.random() < 0.5))
    return script
