"""How long bookies take to serve again after a kill: it grows with the journal that is left, not with what is stored.

Invariant: a run ends with every ledger holding what was acknowledged, as far as it was written to the end; one that
doesn't is an error, never a figure.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import bkpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.local import LocalCluster

_WRITERS_AT_ONCE: Final = 64
_CHECKED: Final = 100  # ledgers that are read back


async def restart(
    cluster: LocalCluster,
    ensemble: tuple[int, int, int],
    size: int,
    entries: int,
    ledgers: int,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    """SIGKILL to all bookies at once behind `entries` over `ledgers`, then the start of one after the other.

    `restart_ms` is the time from the start of a process until it is registered and takes connections, the median of the
    bookies'.
    """
    each = max(1, entries // ledgers)
    async with bkpy.connect(cluster.connect_string) as client:
        began = time.perf_counter()
        made = await _write(client, ensemble, size, each, ledgers, progress)
        seconds = time.perf_counter() - began
        await asyncio.gather(*(bookie.kill() for bookie in cluster.bookies))
        times = []
        for bookie in cluster.bookies:
            began = time.perf_counter()
            await bookie.start()
            times.append((time.perf_counter() - began) * 1000)
        for ledger_id in made[:: max(1, ledgers // _CHECKED)]:
            await _check(client, ledger_id, each)
    return {
        "workload": "restart",
        "size": size,
        "entries": each * ledgers,
        "ledgers": ledgers,
        "ensemble": list(ensemble),
        "written_s": round(seconds, 1),
        "restart_ms": round(statistics.median(times), 1),
        "slowest_restart_ms": round(max(times), 1),
        "restarts_ms": [round(one, 1) for one in times],
    }


async def _write(
    client: bkpy.Client,
    ensemble: tuple[int, int, int],
    size: int,
    each: int,
    ledgers: int,
    progress: Callable[[float], None],
) -> list[int]:
    made: list[int] = []
    e, qw, qa = ensemble
    payloads = [bytes(size)] * each

    async def write() -> None:
        while len(made) < ledgers:
            writer = await client.create_ledger(ensemble_size=e, write_quorum=qw, ack_quorum=qa)
            made.append(writer.ledger_id)
            await writer.append_batch(payloads)
            await writer.close()
            progress(min(1.0, len(made) / ledgers))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_WRITERS_AT_ONCE, ledgers)):
            group.create_task(write())
    return made


async def _check(client: bkpy.Client, ledger_id: int, entries: int) -> None:
    async with await client.open_ledger(ledger_id) as reader:
        found = 0
        async for _ in reader.read():
            found += 1
    if found != entries:
        raise bkpy.BookKeeperError(f"{entries} entries were acknowledged, {found} are there", ledger_id=ledger_id)
