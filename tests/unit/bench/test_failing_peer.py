"""A row in which Apache BookKeeper or bkpy fails costs that row alone, and says so."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
LARGE = "10 KB, 200 outstanding"
FIGURES = {"entries_per_s": 1000.0, "p50_ms": 1.0, "p99_ms": 2.0}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of benchmarks/peers/, which is no package, by name."""
    monkeypatch.syspath_prepend(str(PEERS))

    def script(name: str) -> ModuleType:
        return __import__(name)

    return script


class Theirs:
    """Servers of the peer that only count how often they were started anew."""

    def __init__(self, group_wait_ms: int) -> None:
        self.group_wait_ms = group_wait_ms
        self.anew = 0
        self.commands: list[str] = []

    async def start_anew(self) -> None:
        self.anew += 1

    async def command(self, word: str) -> dict[str, Any]:
        self.commands.append(word)
        return {}


class NoFurther:
    async def prepare(self, row: Any) -> None: ...

    async def round(self, row: Any) -> None: ...

    async def close(self, row: Any) -> dict[str, Any]:
        return {}


def at_rest(peers: Any, directory: str = ".") -> Any:
    """What needn't be waited for."""
    rest = peers("rest").Rest(directory, None)

    async def at_once(idle_s: float) -> dict[str, Any]:
        return {}

    rest.until_idle = at_once
    return rest


def measured(
    monkeypatch: pytest.MonkeyPatch, peers: Any, fails_at: int, *, ours_fails_at: int = -1, name: str = LARGE
) -> tuple[dict[str, Any], Theirs]:
    """A row of three rounds whose peer fails at that call, 0 being its warm-up, and bkpy at that round.

    -1: at the command before the warm-up that writes what a row reads.
    """
    run, plan, error = peers("run"), peers("plan"), peers("peer").PeerError("nothing was answered")
    calls = our_calls = 0

    class Rounds:
        def __init__(self, rest: Any, plan: Any) -> None: ...

        async def warm_up(self, cluster: Theirs, row: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
            await self.java(cluster, row, "chain", refill=False)
            return ("chain",), {"chain": [FIGURES]}

        async def java(self, cluster: Theirs, row: Any, way: str, *, refill: bool) -> dict[str, Any]:
            nonlocal calls
            calls += 1
            if calls == fails_at + 1:
                raise error
            return FIGURES

        async def clear(self, cluster: Theirs) -> None:
            await cluster.command("close")

        async def ours(self, row: Any, api: str, entries: int, *, ceiling: bool) -> dict[str, Any]:
            nonlocal our_calls
            our_calls += 1
            if our_calls == ours_fails_at + 1:
                raise error
            return FIGURES

    async def warm(cluster: Theirs, plan: Any, *, reads: bool) -> None: ...

    async def fill(cluster: Theirs, row: Any) -> None:
        if fails_at == -1:
            raise error

    monkeypatch.setattr(run, "Rounds", Rounds)
    monkeypatch.setattr(run, "warm_up_cold", warm)
    monkeypatch.setattr(run, "fill", fill)
    row = next(row for row in peers("rows").ROWS if row.name == name)
    theirs = Theirs(row.group_wait_ms)
    comparison = run.Comparison(dataclasses.replace(plan.QUICK, rounds=3), theirs, NoFurther(), at_rest(peers))
    return asyncio.run(comparison.row(row)), theirs


@pytest.mark.parametrize(("fails_at", "rounds"), [(0, 0), (1, 0), (3, 2)])
def test_a_row_keeps_what_was_measured_before_the_peer_failed(
    monkeypatch: pytest.MonkeyPatch, peers: Any, fails_at: int, rounds: int
) -> None:
    row, theirs = measured(monkeypatch, peers, fails_at)
    assert row["their_failure"].startswith("nothing was answered (")
    assert len(row["ours"]["append"]["rounds"]) == 3
    assert [len(one["rounds"]) for one in row["theirs"].values()] == ([rounds] if rounds else [])
    assert [one["times"] for one in row["comparisons"]] == ([1.0] if rounds else [])
    assert (theirs.anew, theirs.commands) == (1, [])
    shown = io.StringIO()
    Console(file=shown, width=165).print(peers("report").tables([row])[0])
    lines = [line.split() for line in shown.getvalue().splitlines() if "append" in line]
    assert [line[4:7] for line in lines][:1] == [["append", ":", "failed"]]
    assert len(lines) == 1 + bool(rounds)


def test_a_peer_that_cannot_write_what_a_row_reads_has_failed_in_that_row(
    monkeypatch: pytest.MonkeyPatch, peers: Any
) -> None:
    row, theirs = measured(monkeypatch, peers, -1, name="read 1 KB, from memory")
    assert row["their_failure"].startswith("nothing was answered (")
    assert [len(one["rounds"]) for one in row["ours"].values()] == [3, 3]
    assert (row["theirs"], theirs.anew) == ({}, 1)


def test_a_sustained_row_clears_away_what_the_peer_has_written_before_bkpy_writes(
    monkeypatch: pytest.MonkeyPatch, peers: Any
) -> None:
    _, theirs = measured(monkeypatch, peers, 10, name=f"{LARGE}, for a minute")
    assert theirs.commands == ["close"] * 4


def test_a_sustained_row_is_warmed_up_by_short_rounds(monkeypatch: pytest.MonkeyPatch, peers: Any) -> None:
    rounds, plan = peers("rounds"), peers("plan").QUICK
    sustained = next(row for row in peers("rows").ROWS if row.seconds is not None)
    asked: list[tuple[str, float | None]] = []

    async def java(self: Any, cluster: Any, row: Any, way: str, *, refill: bool, seconds: float | None = None) -> Any:
        asked.append((way, seconds))
        return FIGURES

    monkeypatch.setattr(rounds.Rounds, "java", java)
    asyncio.run(rounds.Rounds(at_rest(peers), plan).warm_up(None, sustained))
    assert asked == [(way, plan.seconds) for way in peers("rows").DRIVES]


async def test_a_run_that_is_not_done_in_time_leaves_rows_out_or_fails(peers: Any) -> None:
    within, plan = peers("rounds").within, peers("plan")

    async def endless() -> None:
        async with within(plan.FULL, 0.01) as ends:
            assert ends is None
            await asyncio.Event().wait()

    async with within(plan.QUICK, 60.0) as ends:
        assert 0 < ends - time.monotonic() <= 60.0
    with pytest.raises(peers("peer").PeerError, match=r"not all rows were measured within 0\.01 s"):
        await endless()


def test_space_is_freed_when_no_more_of_it_comes(peers: Any) -> None:
    disk = peers("disk")
    step = disk.FREED_BYTES
    free = iter([0, step // 2, step, 2 * step, 2 * step, 2 * step, 2 * step + 1, -1])
    asyncio.run(disk.until_freed(".", 0.0025, lambda _: next(free), look_s=0.001))
    assert next(free) == -1


def test_a_row_without_a_failure_has_none(monkeypatch: pytest.MonkeyPatch, peers: Any) -> None:
    row, theirs = measured(monkeypatch, peers, 10)
    assert "their_failure" not in row
    assert (theirs.anew, theirs.commands) == (0, ["close"])
    assert [len(one["rounds"]) for one in row["theirs"].values()] == [3]


@pytest.mark.parametrize("ours_fails_at", [0, 2])
def test_a_row_in_which_bkpy_fails_has_the_rounds_of_before_and_all_of_the_peers(
    monkeypatch: pytest.MonkeyPatch, peers: Any, ours_fails_at: int
) -> None:
    row, theirs = measured(monkeypatch, peers, 10, ours_fails_at=ours_fails_at)
    assert row["our_failure"] == "nothing was answered"
    assert "their_failure" not in row
    assert [len(one["rounds"]) for one in row["ours"].values()] == ([ours_fails_at] if ours_fails_at else [])
    assert [len(one["rounds"]) for one in row["theirs"].values()] == [3]
    assert (theirs.anew, theirs.commands) == (0, ["close"])
    shown = io.StringIO()
    Console(file=shown, width=165).print(*peers("report").tables([row]))
    assert ("append : chain" in shown.getvalue()) == bool(ours_fails_at)


@pytest.mark.parametrize(("fails_at", "rounds"), [(0, 0), (2, 1)])
def test_a_further_peer_that_fails_in_a_row_has_the_next_one_with_fresh_servers(
    monkeypatch: pytest.MonkeyPatch, peers: Any, tmp_path: Path, fails_at: int, rounds: int
) -> None:
    further, peer, plan, rows = peers("further"), peers("peer"), peers("plan"), peers("rows").ROWS

    class Fails(peer.Peer):  # type: ignore[misc]
        settings = (peer.Setting("it", "It", "as it comes"),)
        starts = measured = 0

        async def start(self) -> None:
            self.starts += 1
            (self.directory / "data").mkdir()  # where there is one of before, that fails

        def server_pids(self) -> list[int | None]:
            return []

        def ways(self, row: Any) -> tuple[str, ...]:
            return ("alone",)

        async def open(self, row: Any, setting: Any) -> None: ...

        async def append(self, row: Any, way: str, seconds: float) -> dict[str, Any]:
            if row.ledgers == 1:
                return FIGURES
            self.measured += 1
            if self.measured == fails_at + 1:
                raise peer.PeerError("nothing was answered")
            return FIGURES

        async def command(self, *words: object) -> dict[str, Any]:
            return {}

        async def kill_servers(self) -> None: ...

    @contextlib.asynccontextmanager
    async def unwatched(*pids: Any) -> AsyncIterator[tuple[Any, Any]]:
        yield argparse.Namespace(mb=None), argparse.Namespace(mb=None)

    monkeypatch.setattr(further, "watched", unwatched)
    monkeypatch.setattr(further, "CLOSED_S", 0.0)
    one = Fails(tmp_path / "it")
    columns = further.Further([one], plan.QUICK, at_rest(peers))

    async def measure() -> list[dict[str, Any]]:
        await columns.start()
        found = []
        for row in rows[3], rows[4]:
            await columns.prepare(row)
            for _ in range(3):
                await columns.round(row)
            found.append({"name": row.name, "ours": {"append": FIGURES}, "further": await columns.close(row)})
        return found

    assert plan.QUICK.warm_rounds == 1
    failed, next_one = asyncio.run(measure())
    assert failed["further"]["it"]["failure"] == "nothing was answered"
    assert len(failed["further"]["it"].get("rounds", [])) == rounds
    assert "failure" not in next_one["further"]["it"]
    assert len(next_one["further"]["it"]["rounds"]) == 3
    assert one.starts == 2
    shown = io.StringIO()
    table = peers("report").further_table([failed, next_one], {"it": {"title": "It", "about": "as it comes"}})
    Console(file=shown, width=165).print(table)
    assert shown.getvalue().count("failed") == (not rounds)


def test_rounds_that_were_asked_for_are_those_of_a_sustained_row_too(peers: Any) -> None:
    plan, rows = peers("plan"), peers("rows").ROWS
    usual, sustained = rows[0], next(row for row in rows if row.rounds is not None)
    assert plan.FULL.rounds_of(usual) == plan.FULL.rounds
    assert plan.FULL.rounds_of(sustained) == sustained.rounds
    for rounds, seconds in ((1, None), (None, 2.0)):
        changed = plan.FULL.changed(argparse.Namespace(rounds=rounds, seconds=seconds))
        assert changed.rounds_of(sustained) == (rounds or sustained.rounds)


def test_a_row_of_healing_has_what_the_peer_did_before_it_failed(
    monkeypatch: pytest.MonkeyPatch, peers: Any, tmp_path: Path
) -> None:
    healing, error = peers("healing"), peers("peer").PeerError("fenced")
    event = {"seconds": 2.0, "before": {"p99_ms": 1.0}, "meanwhile": {"p99_ms": 2.0, "longest_ms": 3.0}}

    class Side:
        @classmethod
        @contextlib.asynccontextmanager
        async def running(cls, *_: Any) -> AsyncIterator[Side]:
            yield cls()

    class Ours(Side):
        pass

    class Theirs(Side):
        pass

    async def measure_one(side: Side, data: Any, rest: Any, found: dict[str, Any]) -> None:
        found["killed"] = event
        if isinstance(side, Theirs):
            raise error
        found["drained"] = event

    for name, value in (("Ours", Ours), ("Theirs", Theirs), ("measure_one", measure_one)):
        monkeypatch.setattr(healing, name, value)

    async def rows() -> list[dict[str, Any]]:
        return [row async for row in healing.measure([healing.ROWS[0]], at_rest(peers, str(tmp_path)), "")]

    (row,) = asyncio.run(rows())
    assert row["bkpy"].keys() == {"killed", "drained"}
    assert row["BookKeeper"] == {"killed": event, "failure": "fenced"}
    shown = io.StringIO()
    Console(file=shown, width=165).print(healing.table([row]))
    assert [line.split()[-1] for line in shown.getvalue().splitlines() if "BookKeeper" in line] == ["3.0", "failed"]
