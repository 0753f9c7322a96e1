"""The further columns: Apache Kafka and NATS JetStream in rounds of their own between the others'.

Only appends, and only rows that ask something of them that no other row does.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from kafka import Kafka
from nats import Nats
from peer import PeerError
from plan import COLD_S, IDLE_S, Plan
from report import summary
from rows import Row

from bkpy.bench.memory import watched

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from pathlib import Path

    from peer import Peer, Setting
    from rest import Rest

PEERS: Final[Mapping[str, type[Peer]]] = {"kafka": Kafka, "nats": Nats}
WARM_UP: Final = Row("warm-up", "append", 100, 1000)
CLOSED_S: Final = 3.0  # for what deleting a thousand logs leaves to do


def peer_names(text: str) -> tuple[str, ...]:
    """The value of `--peers`: names, separated by commas, each once."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(map(repr, unknown))}; there are {', '.join(PEERS)}")
    return names


class Column:
    """One peer with one setting: what it reached in the rounds of the current row, until a `failure`."""

    def __init__(self, peer: Peer, setting: Setting, plan: Plan, rest: Rest) -> None:
        self.peer = peer
        self.failure: str | None = None
        self._rest = rest
        self.setting = setting
        self._plan = plan
        self._way = ""
        self._warm_ups: dict[str, list[dict[str, Any]]] = {}
        self._rounds: list[dict[str, Any]] = []

    async def prepare(self, row: Row) -> None:
        """Warm up for the row, in every way that its client may take, and keep to the fastest."""
        ways = self.peer.ways(row)
        self.failure, self._rounds = None, []
        self._warm_ups = {way: [] for way in ways}
        for way in list(ways) * self._plan.warm_rounds:
            self._warm_ups[way].append(await self._measure(row, way))
        self._way = max(ways, key=lambda way: self._warm_ups[way][-1]["entries_per_s"])

    async def round(self, row: Row) -> None:
        self._rounds.append(await self._measure(row, self._way))

    async def _measure(self, row: Row, way: str) -> dict[str, Any]:
        await self.peer.open(row, self.setting)
        rested = await self._rest.until_idle(IDLE_S)
        async with watched(lambda: [self.peer.client.pid], self.peer.server_pids) as (own, servers):
            answer = await self.peer.append(row, way, self._plan.seconds)
        return {**answer, **rested, "client_rss_anon_mb": own.mb, "server_rss_anon_mb": servers.mb}

    def result(self, row: Row) -> dict[str, Any]:
        """Medians and rounds of the row."""
        found: dict[str, Any] = {"way": self._way, "warm_up": self._warm_ups}
        found |= summary(self._rounds) if self._rounds else {}
        found |= {} if self.failure is None else {"failure": self.failure}
        stand_in = self.peer.stand_in(row)
        return found if stand_in is None else {**found, "stand_in": stand_in}


class Further:
    """All further columns. Their servers run all the time, as the first peer's do, unless a round fails."""

    def __init__(self, peers: Sequence[Peer], plan: Plan, rest: Rest) -> None:
        self._peers = peers
        self._plan = plan
        self.columns = [Column(peer, setting, plan, rest) for peer in peers for setting in peer.settings]

    async def start(self) -> None:
        for peer in self._peers:
            await peer.start()
            await self._warm_up(peer)

    async def _warm_up(self, peer: Peer) -> None:
        for seconds in (COLD_S, *[self._plan.seconds] * self._plan.cold_rounds):
            await peer.open(WARM_UP, peer.settings[0])
            await peer.append(WARM_UP, peer.ways(WARM_UP)[-1], seconds)

    def columns_of(self, row: Row) -> list[Column]:
        return self.columns if row.further else []

    async def prepare(self, row: Row) -> None:
        for column in self.columns_of(row):
            await self._try(column, column.prepare(row))

    async def round(self, row: Row) -> None:
        for column in self.columns_of(row):
            if column.failure is None:
                await self._try(column, column.round(row))

    async def _try(self, column: Column, measuring: Coroutine[Any, Any, None]) -> None:
        """A failure is the column's result of this row, and the next one has fresh servers."""
        try:
            await measuring
        except PeerError as e:
            column.failure = str(e)
            await column.peer.start_anew()
            await self._warm_up(column.peer)

    async def close(self, row: Row) -> dict[str, dict[str, Any]]:
        """The figures of the row, by the columns' keys; what was written is deleted."""
        for peer in self._peers:
            await peer.command("close")
        if self._peers and row.ledgers > 1:
            await asyncio.sleep(CLOSED_S)
        return {column.setting.key: column.result(row) for column in self.columns_of(row)}

    async def kill(self) -> None:
        for peer in self._peers:
            await peer.kill()


def further_peers(names: Sequence[str], directory: Path) -> list[Peer]:
    """The peers of that name, fetched; `PeerError` with what is missing."""
    return [PEERS[name](directory / name) for name in names]


def further_header(peers: Sequence[Peer]) -> dict[str, Any]:
    """What the file says of these peers, beside the rows: their versions and their columns."""
    if not peers:
        return {}
    settings = [setting for peer in peers for setting in peer.settings]
    return {
        "further_versions": {name: number for peer in peers for name, number in peer.versions.items()},
        "further": {setting.key: {"title": setting.title, "about": setting.about} for setting in settings},
    }
