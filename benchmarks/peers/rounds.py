"""One round of a row: of Java's client on bookies of either kind, or of `bkpy bench`.

Before each round the disk is idle, and no memory is the host's: what a system still had to write is not written in
the other one's round, and pages that it freed are not had from the host there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from disk import until_freed
from peer import PeerError
from plan import COLD_S, IDLE_S, PEER_COLLECTS_S, PEER_IDLE_S, fits
from processes import cpu_s
from rows import DRIVES, READ_MODES

from bkpy.bench.memory import watched
from bkpy.bench.workloads import READ_LEDGER_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from peer import Client
    from plan import Plan
    from rest import Rest
    from rows import Row

OUR_TIMEOUT_S: Final = 180.0  # for one `bkpy bench`, beyond the seconds that are measured
# On Java's bookies a client waits as long as Java's there (`configuration` in PeerBench.java).
PATIENCE: Final = tuple(f"--set={name}" for name in ("add_timeout_s=30", "read_timeout_s=30", "session_timeout_s=60"))


class Driven(Protocol):
    """Bookies of either kind with a client of Java's. `rest_s`: for how long the disk has to be idle after them."""

    rest_s: float
    client: Client | None

    def bookie_pids(self) -> list[int | None]: ...

    async def command(self, *words: object) -> dict[str, Any]: ...


class Rounds:
    """Rounds as long as the plan says, or the row."""

    def __init__(self, rest: Rest, plan: Plan) -> None:
        self._rest = rest
        self._plan = plan
        self._idle_s = IDLE_S

    async def warm_up(self, cluster: Driven, row: Row) -> tuple[tuple[str, ...], dict[str, list[dict[str, Any]]]]:
        """(in which of its ways Java's client is to be measured, the rounds of all of them that say so).

        They are short ones of a sustained row as well.
        """
        ways: tuple[str, ...] = READ_MODES if row.workload == "read" else DRIVES
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for way in list(ways) * self._plan.warm_rounds:
            found[way].append(await self.java(cluster, row, way, refill=False, seconds=self._plan.seconds))
        if row.workload == "append":
            ways = (max(ways, key=lambda way: found[way][-1]["entries_per_s"]),)
        return ways, found

    async def java(
        self, cluster: Driven, row: Row, way: str, *, refill: bool, seconds: float | None = None
    ) -> dict[str, Any]:
        """Java's client, in one of its ways. `refill`: what is read is written before, and so in memory.

        `seconds` are those of the row, or of the plan, if nothing else is said.

        `PeerError` if it doesn't bring the round to its end.
        """
        if row.workload == "read":
            if refill and not row.restart:
                await fill(cluster, row)
            words: tuple[object, ...] = ("read", way, seconds or self._length(row))
        else:
            await cluster.command("open", row.ledgers)  # and delete those of the round before: the disk is finite
            words = ("append", way, row.size, row.outstanding, seconds or self._length(row))
        rested = await self._rest.until_idle(self._idle_s)
        client = cluster.client
        assert client is not None
        pids = cluster.bookie_pids()
        before = cpu_s(pids)
        async with watched(lambda: [client.pid], cluster.bookie_pids) as (own, bookies):
            answer = await cluster.command(*words)
        answered = answer["all_entries"] * (len(pids) if row.workload == "append" else 1)  # a read asks one of them
        used = {"bookie_cpu_us": round((cpu_s(pids) - before) / answered * 1e6, 2)}
        self._idle_s = cluster.rest_s
        return {
            **answer,
            **rested,
            **used,
            "client_rss_anon_mb": own.mb,
            "bookie_rss_anon_mb": bookies.mb,
        }

    async def clear(self, cluster: Driven) -> None:
        """Have the cluster delete what it stores: with a minute of another system it would fill the disk."""
        await cluster.command("close")
        await until_freed(self._rest.directory, PEER_COLLECTS_S)

    async def ours(
        self, row: Row, api: str, entries: int, *, ceiling: bool = False, connect: str | None = None
    ) -> dict[str, Any]:
        """One `bkpy bench`, on a cluster of its own whose data goes with it, or on Java's bookies.

        `PeerError` if it fails.
        """
        seconds = self._length(row)
        command = [sys.executable, "-m", "bkpy", *(PATIENCE if connect else ()), "bench", "--json"]
        command += ["--seconds", str(seconds), "--dir", self._rest.directory, *row.our_arguments(api, entries)]
        command += [*(["--ceiling"] if ceiling else []), *(["--connect", connect] if connect else [])]
        rested = await self._rest.until_idle(self._idle_s)
        answer = await output(command, OUR_TIMEOUT_S + 3 * seconds)
        self._idle_s = PEER_IDLE_S if connect else IDLE_S
        return {**answer, **rested}

    def _length(self, row: Row) -> float:
        return row.seconds or self._plan.seconds


@contextlib.asynccontextmanager
async def within(plan: Plan, time_max_s: float) -> AsyncIterator[float | None]:
    """When the time is over for rows that the plan leaves out then. If it leaves out none, that is a `PeerError`."""
    try:
        async with asyncio.timeout(None if plan.leaves_out else time_max_s):
            yield time.monotonic() + time_max_s if plan.leaves_out else None
    except TimeoutError:
        raise PeerError(f"not all rows were measured within {time_max_s:g} s") from None


async def in_time(
    rows: Sequence[Row],
    measure: Callable[[Row], Awaitable[dict[str, Any]]],
    save: Callable[[Any], None],
    *,
    ends: float | None,
) -> list[Row]:
    """Measure the rows, and hand each to `save` when it is done; those for which no time is left up to `ends`."""
    taken_s: list[float] = []
    left_out: list[Row] = []
    for row in rows:
        began = time.monotonic()
        if ends is not None and not fits(ends - began, taken_s):
            left_out.append(row)
            continue
        save(await measure(row))
        taken_s.append(time.monotonic() - began)
        print(f"{row.name}: {taken_s[-1]:.0f} s", file=sys.stderr)
    return left_out


async def warm_up_cold(cluster: Driven, plan: Plan, *, reads: bool) -> None:
    """Load servers and a client that have yet to compile their code."""
    await cluster.command("open", 1)
    for seconds in (COLD_S, *[plan.seconds] * plan.cold_rounds):
        await cluster.command("append", DRIVES[0], 100, 1000, seconds)
    if reads:
        for mode in READ_MODES:
            await cluster.command("read", mode, COLD_S)


async def fill(cluster: Driven, row: Row) -> None:
    """Write the ledger that a row reads."""
    await cluster.command("fill", READ_LEDGER_BYTES // row.size, row.size)


async def output(command: list[str], timeout_s: float) -> dict[str, Any]:
    """The JSON that the command prints; `PeerError` if it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise PeerError(f"took longer than {timeout_s:g} s: {' '.join(command)}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise PeerError(f"{' '.join(command)} ended with status {process.returncode}: {err.decode()[-2000:]}")
    result: dict[str, Any] = json.loads(out)
    return result
