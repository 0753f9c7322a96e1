"""What failures cost: the pause while a bookie is killed under load, and the recovery of a ledger whose writer is gone.

Invariants: each round begins with all bookies running and ends with every acknowledged entry found; a fresh client in
each remembers no failure of an earlier one. A round in which an entry is missing is an error, never a figure.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import bkpy
from bkpy.bench.workloads import WARM_UP_MIN_S
from bkpy.local.process import poll

if TYPE_CHECKING:
    from bkpy.local import LocalCluster

_REPLACED_TIMEOUT_S: Final = 60.0

Progress = Callable[[float], None]
Sizes = tuple[int, int, int]


class Gap:
    """The longest time without an acknowledgement since the last `restart`, in seconds."""

    def __init__(self) -> None:
        self.entries = 0  # acknowledged, over all of its life
        self._longest_s = 0.0
        self._seen_at = time.perf_counter()

    def acknowledged(self) -> None:
        self.entries += 1
        self._look()

    def restart(self) -> float:
        """Start over. Returns the longest gap so far, which may be one that lasts until now."""
        self._look()
        longest, self._longest_s = self._longest_s, 0.0
        return longest

    def _look(self) -> None:
        now = time.perf_counter()
        if now - self._seen_at > self._longest_s:
            self._longest_s = now - self._seen_at
        self._seen_at = now


async def failover(
    cluster: LocalCluster,
    ensemble: Sizes,
    size: int,
    outstanding: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> dict[str, Any]:
    """SIGKILL to a bookie of a ledger that is being written, with at least one bookie to replace it.

    `seconds` of load go before the kill, and after it. Gaps are in milliseconds; `longest_gap_ms` is their median.
    """
    gaps, undisturbed = [], []
    entries = 0
    for i in range(rounds):
        before, after, acknowledged = await _killed_under_load(cluster, ensemble, size, outstanding, seconds, i)
        undisturbed.append(before * 1000)
        gaps.append(after * 1000)
        entries += acknowledged
        progress((i + 1) / rounds)
    return {
        "workload": "failover",
        "size": size,
        "outstanding": outstanding,
        "ensemble": list(ensemble),
        "bookies": len(cluster.bookies),
        "rounds": rounds,
        "entries": entries,
        "longest_gap_ms": round(statistics.median(gaps), 3),
        "longest_gaps_ms": [round(gap, 3) for gap in gaps],
        "undisturbed_gap_ms": round(statistics.median(undisturbed), 3),
    }


async def _killed_under_load(
    cluster: LocalCluster, ensemble: Sizes, size: int, outstanding: int, seconds: float, position: int
) -> tuple[float, float, int]:
    """(longest gap before the kill, longest one from then on, entries acknowledged); the bookie runs again after it."""
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await _create(client, ensemble)
        killed = writer.ensemble[position % len(writer.ensemble)]
        bookie = next(bookie for bookie in cluster.bookies if bookie.id == killed)
        gap = Gap()
        running = True

        async def append() -> None:
            payload = bytes(size)
            while running:
                await writer.append(payload)
                gap.acknowledged()

        async with asyncio.TaskGroup() as group:
            for _ in range(outstanding):
                group.create_task(append())
            await asyncio.sleep(min(WARM_UP_MIN_S, seconds))
            gap.restart()
            await asyncio.sleep(seconds)
            before = gap.restart()
            await bookie.kill()
            await asyncio.sleep(seconds)
            await _replaced(writer, killed)
            after = gap.restart()
            running = False
        await writer.close()
        if writer.last_add_confirmed + 1 != gap.entries:
            raise bkpy.BookKeeperError(
                f"{gap.entries} entries were acknowledged, the ledger has {writer.last_add_confirmed + 1}",
                ledger_id=writer.ledger_id,
            )
        await client.delete_ledger(writer.ledger_id)
    await bookie.start()
    return before, after, gap.entries


async def _replaced(writer: bkpy.LedgerWriter, killed: str) -> None:
    async def gone() -> bool:
        return killed not in writer.ensemble

    if not await poll(gone, _REPLACED_TIMEOUT_S):
        raise bkpy.BookKeeperError("no other bookie took its place", ledger_id=writer.ledger_id, bookie=killed)


async def recovery(
    uri: str, ensemble: Sizes, size: int, entries: int, rounds: int, progress: Progress
) -> dict[str, Any]:
    """Recover a ledger of which bookies know no confirmed entry; `recovery_ms` is the median of the rounds."""
    times = []
    unconfirmed = entries
    for i in range(rounds):
        ledger_id, confirmed = await _abandoned(uri, ensemble, size, entries)
        unconfirmed = min(unconfirmed, entries - 1 - confirmed)
        times.append(await _recover(uri, ledger_id, entries, size) * 1000)
        progress((i + 1) / rounds)
    median = statistics.median(times)
    return {
        "workload": "recovery",
        "size": size,
        "entries": entries,
        "unconfirmed_entries": unconfirmed,  # the fewest of all rounds
        "ensemble": list(ensemble),
        "rounds": rounds,
        "recovery_ms": round(median, 3),
        "recoveries_ms": [round(one, 3) for one in times],
        "ms_per_entry": round(median / entries, 5),
    }


async def _abandoned(uri: str, ensemble: Sizes, size: int, entries: int) -> tuple[int, int]:
    """(id of a ledger whose writer has gone, the last entry that its bookies know to be confirmed).

    All entries leave in one tick of the event loop, so none says that another was acknowledged, and the
    writer says nothing later on.
    """
    async with bkpy.connect(uri, explicit_lac_interval_s=0) as client:
        writer = await _create(client, ensemble)
        await writer.append_batch([bytes(size)] * entries)
        writer.abandon()
        async with await client.open_ledger(writer.ledger_id) as reader:
            return writer.ledger_id, reader.last_add_confirmed


async def _recover(uri: str, ledger_id: int, entries: int, size: int) -> float:
    """Seconds that the recovery took, from a client that is connected to the metadata store and to no bookie."""
    async with bkpy.connect(uri) as client:
        began = time.perf_counter()
        async with await client.recover_ledger(ledger_id) as reader:
            took = time.perf_counter() - began
            if (reader.last_add_confirmed + 1, reader.length) != (entries, entries * size):
                raise bkpy.BookKeeperError(
                    f"{entries} entries were acknowledged, {reader.last_add_confirmed + 1} were recovered",
                    ledger_id=ledger_id,
                )
        await client.delete_ledger(ledger_id)
    return took


async def _create(client: bkpy.Client, ensemble: Sizes) -> bkpy.LedgerWriter:
    size, write_quorum, ack_quorum = ensemble
    return await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
