"""Writers that die or go on as zombies, and others that recover their ledgers, among bookies that fail.

The runs are random, by seed. The schedules of single rules are not: each is played with the rule, and the oracle is
satisfied, and without it, and then the oracle must notice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from bkpy.client.connect import Client
from bkpy.client.recovery import LedgerRecovery
from bkpy.client.writer import LedgerWriter
from bkpy.errors import BookKeeperError, LedgerFencedError, LedgerRecoveryError
from bkpy.protocol.acks import LedgerAcks
from bkpy.protocol.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.recovery import Forward, Reply

from .cluster import Bookie, Cluster
from .failover import failover_run
from .stories import PASSWORD, Stories, Story

BLOCK = 25  # seeds


def run_seeds(seeds: range) -> Counter[str]:
    """Run them all; how often what happened, by the names of hosts and events."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        cluster, run = failover_run(seed)
        try:
            cluster.run(run)
        except BaseException as error:
            error.add_note(f"python -m tests.sim failover {seed}")
            raise
        for event in cluster.world.trace:
            happened[f"{event.host}: {event.what}"] += 1
            happened[event.detail.rpartition(" ")[2]] += event.what.endswith(" failed")
            happened["ensembles"] += event.detail.count("; ") if event.what == str(LedgerState.CLOSED) else 0
    return happened


@pytest.mark.scenario(1)
@pytest.mark.scenario(14)
@pytest.mark.scenario(18)
@pytest.mark.scenario(67)
@pytest.mark.parametrize("block", range(3))
def test_a_ledger_survives_its_writer(block: int) -> None:
    happened = run_seeds(range(block * BLOCK, (block + 1) * BLOCK))
    # They went where it hurts.
    assert happened["writer: acknowledged"] > 1000
    assert happened["oracle: satisfied"] > BLOCK
    assert happened["ensembles"] > 0
    assert happened["LedgerFencedError"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(3, 23))
def test_a_ledger_survives_its_writer_in_many_runs(block: int) -> None:
    happened = run_seeds(range(block * BLOCK, (block + 1) * BLOCK))
    assert happened["oracle: satisfied"] > BLOCK


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    def trace_hash(seed: int) -> str:
        cluster, run = failover_run(seed)
        cluster.run(run)
        return cluster.world.trace_hash()

    for seed in (3, 6):
        hashes = set()
        for hash_seed in ("1", "2"):
            output = subprocess.run(
                [sys.executable, "-m", "tests.sim", "failover", str(seed)],
                cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            hashes.add(output.splitlines()[-1])
        assert hashes == {trace_hash(seed)}


# --- one rule at a time ---------------------------------------------------------------------------------------------


class Scene:
    """A cluster, a host that writes one ledger, and one that recovers it."""

    def __init__(self, bookies: int) -> None:
        self.cluster = Cluster(0, bookies=bookies)
        self.net = self.cluster.world.net
        self.writing = self.cluster.client_host
        self.recovering = self.cluster.world.add_host("rescuer")
        self.stories = Stories(self.cluster.world)

    async def begin(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """`bookies` are those of the ensemble, in its order, and those that are not in it behind them."""
        await self.cluster.start()
        self.recovering.boot()
        self.client: Client = await self.writing.start(
            # Patient, so that nothing happens that the schedule doesn't ask for.
            self.cluster.connect(
                self.writing, add_timeout_s=60.0, add_quorum_timeout_s=100.0, explicit_lac_interval_s=0
            )
        )
        self.writer: LedgerWriter = await self.writing.start(
            self.client.create_ledger(
                ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
            )
        )
        self.story: Story = self.stories.begin(self.client, self.writer)
        ensemble = self.writer.ensemble
        by_name = {bookie.host.name: bookie for bookie in self.cluster.bookies}
        spare = [name for name in sorted(by_name) if name not in ensemble]
        self.bookies: list[Bookie] = [by_name[name] for name in (*ensemble, *spare)]

    def append(self, count: int = 1) -> asyncio.Future[Any]:
        async def append() -> None:
            first = self.story.promises.sent or 0
            payloads = [b"%d" % (first + i) for i in range(count)]
            self.story.promises.sent = first + count
            for entry_id, payload in zip(await self.writer.append_batch(payloads), payloads, strict=True):
                self.acknowledged[entry_id] = payload

        return self.writing.start(append())

    acknowledged: dict[int, bytes]

    def cut(self, host: Any, *bookies: Bookie) -> None:
        for bookie in bookies:
            self.net.partition(host.address, bookie.host.address)

    def mend(self, host: Any, *bookies: Bookie) -> None:
        for bookie in bookies:
            self.net.mend(host.address, bookie.host.address)
