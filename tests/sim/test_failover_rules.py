"""Rules of the failure protocol, each with a schedule that needs it: real bookies, a writer and a recovery.

Each schedule is played with the rule, and the oracle is satisfied; and with the real code robbed of the rule, and then
the oracle must notice. If it did not, the failover runs would prove nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.errors import LedgerFencedError, LedgerRecoveryError
from tests.faults.oracle import make_payload

from .ablations.switches import (
    failures_as_denials,
    not_frozen,
    reading_from_the_answers_alone,
    reading_without_fencing,
)
from .cluster import Bookie, Cluster
from .stories import PASSWORD, Stories

if TYPE_CHECKING:
    from .ablations import Switch
    from .world import Host

# Nothing is to happen that the schedule doesn't ask for.
PATIENT = {"add_timeout_s": 60.0, "add_quorum_timeout_s": 100.0, "explicit_lac_interval_s": 0.0}


class Scene:
    """A cluster, a host that writes one ledger, and one that recovers it."""

    def __init__(self, bookies: int) -> None:
        self.cluster = Cluster(0, bookies=bookies)
        self.net = self.cluster.world.net
        self.writing = self.cluster.client_host
        self.recovering = self.cluster.world.add_host("rescuer")
        self.stories = Stories(self.cluster.world, self.cluster.bookies)

    async def begin(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> list[Bookie]:
        """Create the ledger. The bookies of its ensemble, in its order, and behind them those that are not in it."""
        await self.cluster.start()
        self.recovering.boot()
        client = await self.writing.start(self.cluster.connect(self.writing, **PATIENT))
        self.writer = await self.writing.start(
            client.create_ledger(
                ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
            )
        )
        self.story = self.stories.begin(client, self.writer)
        by_name = {bookie.host.name: bookie for bookie in self.cluster.bookies}
        ensemble = self.writer.ensemble
        return [by_name[name] for name in (*ensemble, *sorted(by_name.keys() - set(ensemble)))]

    def append(self, count: int = 1) -> asyncio.Future[None]:
        """Append a batch."""
        promises = self.story.promises
        rng = Random(0)
        payloads = [make_payload(promises.ledger_id, promises.next_number(), rng, 100) for _ in range(count)]

        async def append() -> None:
            for entry_id, payload in zip(await self.writer.append_batch(payloads), payloads, strict=True):
                self.story.acknowledged(self.writer, entry_id, payload)

        return self.writing.start(append())

    async def recover(self, **settings: Any) -> int:
        """One attempt to recover the ledger; where it ends."""

        async def recover() -> int:
            async with self.cluster.client(self.recovering, **settings) as client:
                reader = await client.recover_ledger(self.story.ledger_id, password=PASSWORD)
                return reader.last_add_confirmed

        return await self.recovering.start(recover())

    async def account(self) -> None:
        """All is well again, whoever is down boots, the ledger is recovered, and the oracle looks at everything."""
        self.net.heal()
        for bookie in self.cluster.bookies:
            if not bookie.host.up:
                await bookie.start()
        await self.recover()

        async def check() -> None:
            async with self.cluster.client(self.recovering) as client:
                await self.stories.check(client, self.cluster.bookies)

        await self.recovering.start(check())

    def cut(self, host: Host, *bookies: Bookie) -> None:
        for bookie in bookies:
            self.net.partition(host.address, bookie.host.address)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if condition():
                return
            await asyncio.sleep(0.0001)
        raise AssertionError("it does not happen")


async def change_while_an_ack_is_under_way(scene: Scene) -> None:
    """An entry's second acknowledgement comes while its first giver is being replaced, and the third never got it."""
    late, cut_off, dying, _ = await scene.begin(3, 3, 2)
    await scene.append()
    scene.net.slow(late.host.address, scene.writing.address, 0.06)
    scene.net.block(scene.writing.address, cut_off.host.address)
    scene.writing.sessions[-1].latency_s = (0.1, 0.1)  # each way, of the client's session
    acknowledged = scene.append()
    await scene.until(lambda: 1 in dying.promises[0] and 1 in late.promises[0])
    await asyncio.sleep(0.005)  # the answer is on its way, and arrives
    dying.host.crash()
    scene.append()
    await scene.until(lambda: acknowledged.done() and len(scene.story.stored.fragments) == 2)
    scene.net.reset(scene.writing.address, cut_off.host.address)
    scene.writing.power_cut()
    late.host.crash()
    scene.net.heal()
    await scene.recover()
    await scene.account()


async def append_that_overtakes_a_recovery(scene: Scene) -> None:
    """One bookie misses the fencing, is asked for entries that it doesn't have yet, and is then sent them."""
    first, deaf, unfenced = await scene.begin(3, 3, 2)
    ledger_id = scene.story.ledger_id
    scene.net.block(scene.writing.address, deaf.host.address)
    scene.net.block(scene.writing.address, unfenced.host.address)
    appended = scene.append()
    await scene.until(lambda: 0 in first.promises[ledger_id])
    await asyncio.sleep(0.05)
    scene.cut(scene.writing, first)  # the writer has its answer, and is not to hear of its death
    scene.cut(scene.recovering, unfenced)
    deaf.host.disk.stall()
    recovery = asyncio.ensure_future(scene.recover(connect_timeout_s=0.3))
    await scene.until(lambda: ledger_id in first.fenced)
    await asyncio.sleep(0.5)
    first.host.crash()
    scene.net.mend(scene.recovering.address, unfenced.host.address)
    await asyncio.sleep(5.0)  # by now the recovery's host is connected again
    deaf.host.disk.unstall()
    assert await recovery == -1
    scene.net.mend(scene.writing.address, unfenced.host.address)
    with contextlib.suppress(LedgerFencedError):
        await appended
    scene.writing.crash()
    await scene.account()


async def fragment_without_an_entry(scene: Scene) -> None:
    """The bookies of a striped ledger's last fragment know of no acknowledged entry, and not all others are up."""
    one, dying, also_dying, other, *_ = await scene.begin(4, 2, 2)
    await scene.append(5)  # in one batch: none of them says that another one was acknowledged
    for stays in (one, other):
        scene.net.block(scene.writing.address, stays.host.address)
    dying.host.crash()
    also_dying.host.crash()
    scene.append(4)
    await scene.until(lambda: len(scene.story.stored.fragments) == 2)
    scene.writing.crash()
    try:
        await scene.recover()
    except LedgerRecoveryError as error:
        raise AssertionError("the ledger can't be recovered") from error
    await scene.account()


async def bookies_that_hang_when_they_are_read(scene: Scene) -> None:
    """Two bookies are fenced and then hang, the third can't be reached: nobody denies the entry, all have it."""
    one, other, away, _ = await scene.begin(3, 3, 2)
    ledger_id = scene.story.ledger_id
    await scene.append()
    await scene.until(lambda: all(0 in bookie.promises[ledger_id] for bookie in (one, other, away)))
    scene.writing.crash()
    scene.cut(scene.recovering, away)
    other.host.disk.stall()
    recovery = asyncio.ensure_future(scene.recover(connect_timeout_s=0.3, read_timeout_s=2.0))
    await scene.until(lambda: ledger_id in one.fenced)
    await asyncio.sleep(0.5)
    scene.net.block(scene.recovering.address, one.host.address)
    scene.net.block(scene.recovering.address, other.host.address)
    other.host.disk.unstall()
    with contextlib.suppress(LedgerRecoveryError):
        await recovery
    await scene.account()


Schedule = Callable[[Scene], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("schedule", "bookies"),
    [
        pytest.param(change_while_an_ack_is_under_way, 4, marks=pytest.mark.scenario(25)),
        pytest.param(append_that_overtakes_a_recovery, 3, marks=pytest.mark.scenario(19)),
        pytest.param(fragment_without_an_entry, 6, marks=pytest.mark.scenario(13)),
        (bookies_that_hang_when_they_are_read, 4),
    ],
)
def test_the_rule_holds(schedule: Schedule, bookies: int) -> None:
    scene = Scene(bookies)
    scene.cluster.run(schedule(scene))


@pytest.mark.parametrize(
    ("schedule", "bookies", "without", "notice"),
    [
        (change_while_an_ack_is_under_way, 4, not_frozen, "past the last entry, which is 0: 1"),
        (append_that_overtakes_a_recovery, 3, reading_without_fencing, "past the last entry, which is -1: 0"),
        (fragment_without_an_entry, 6, reading_from_the_answers_alone, "can't be recovered"),
        (bookies_that_hang_when_they_are_read, 4, failures_as_denials, "past the last entry, which is -1: 0"),
    ],
)
def test_without_the_rule_it_is_noticed(schedule: Schedule, bookies: int, without: Switch, notice: str) -> None:
    scene = Scene(bookies)
    with without(), pytest.raises(AssertionError, match=notice):
        scene.cluster.run(schedule(scene))
