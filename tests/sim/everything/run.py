"""Plays a plan in a fresh world, and says what came of it: everything at once, then healing, then the account."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bkpy.errors import NoSuchLedgerError
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from tests.sim import operators
from tests.sim.coverage_marks import LOSS_ACCEPTED, acted
from tests.sim.log_users import noting_fences, noting_pages
from tests.sim.stories import PASSWORD

from . import cluster_actors, imports, ledger_actors, log_actors
from .bookkeeper_part import BookKeeperOracle, bookkeeper_part
from .drawing import LINKS, STORE
from .faults import strike
from .gone_back import GoneBack
from .left_over import Nodes, check_directories
from .oracle import Oracle, Violation
from .plan import Plan
from .restored import RestoredCluster
from .stage import CREATION, Stage, bookie_settings, cluster_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from bkpy.client.client import Client
    from tests.sim.cluster import Cluster
    from tests.sim.log_users import LogUsers
    from tests.sim.world import Event

    from .plan import Actor

UNHANDLED = "unhandled error"
SECOND = "BookKeeper's protocol"
HEALED_WITHIN_S = 300.0
_TAKEN_BACK_WITHIN_S = 10.0
# Faults that may keep a client from deleting what a cancelled creation has made.
_KEEPS_CREATIONS = {*STORE, *LINKS, "client dies", "lagging follower", "clock jump", "clock drift", "blackout"}

ACTORS: Mapping[str, Any] = {
    "writer": ledger_actors.write,
    "visitor": ledger_actors.visit,
    "duel": ledger_actors.duel,
    "reader": ledger_actors.read,
    "tail": ledger_actors.tail,
    "prober": ledger_actors.probe,
    "move": ledger_actors.move_copies,
    "deletion": ledger_actors.delete,
    "impatience": ledger_actors.lose_patience,
    "log writer": log_actors.write_log,
    "consumer": log_actors.consume,
    "doomed log": log_actors.doom_log,
    "restart": cluster_actors.restart,
    "upgrade": cluster_actors.upgrade,
    "journals": cluster_actors.change_journals,
    "directories": cluster_actors.move_directories,
    "drain": cluster_actors.drain,
    "growth": cluster_actors.grow,
    "format": cluster_actors.make_anew,
    "stranger": cluster_actors.haunt,
    "switch": cluster_actors.switch,
    "recovery by hand": cluster_actors.recover_by_hand,
    "check by hand": cluster_actors.check_by_hand,
    "import": imports.import_ledgers,
}


@dataclass
class Outcome:
    """What came of one plan. `invariant` names what was violated; None if nothing was."""

    plan: Plan
    error: BaseException | None = None
    invariant: str | None = None
    marks: Counter[str] = field(default_factory=Counter)
    trace: list[Event] = field(default_factory=list)
    virtual_s: float = 0.0
    processor_s: float = 0.0


class Play:
    """One run of a plan."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan = plan
        self.cluster = cluster
        self.world = cluster.world
        self.oracle = Oracle(cluster)
        self.stage = Stage(plan, cluster, self.oracle)
        grace_s = plan.bounds.get("bookie.open_ledger_grace_s", 2.0)
        self.oracle.grace_s = grace_s / max([1.0, *self.stage.rates.values()])  # by the fastest clock
        if SECOND in plan.features and plan.shape.get("second_cluster"):
            bookkeeper_part(self.stage, bookie_settings(plan))
        self.acting: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is done, or the oracle has found something."""
        oracles = [part.oracle for part in self.stage.parts]
        with contextlib.ExitStack() as stack:
            for oracle in oracles:
                stack.enter_context(oracle.watching())
            stack.enter_context(noting_fences())
            stack.enter_context(noting_pages(self.cluster.world.marks))
            playing = asyncio.ensure_future(self._play())
            await asyncio.wait([playing, *(one.found for one in oracles)], return_when=asyncio.FIRST_COMPLETED)
            for oracle in oracles:
                if oracle.found.done():
                    playing.cancel()
                    raise oracle.found.result()
            playing.result()

    async def _play(self) -> None:
        await self._calm()
        await self._storm()
        if self.stage.backup is not None and self.plan.shape.get("lost_in_the_storm"):
            await self._leave_all_as_it_is()
            await RestoredCluster(self.stage, self.stage.backup).play()
            return
        await self._heal()
        await self._account()
        if self.stage.backup is not None:
            await RestoredCluster(self.stage, self.stage.backup).play()
        elif self.stage.older is not None:
            await GoneBack(self.stage, self.stage.older).play()
        elif "directories checked" in self.plan.features:
            for stage in self.stage.parts:
                await check_directories(stage)

    async def _calm(self) -> None:
        stage = self.stage
        for part in stage.parts:
            await part.cluster.start()
        for host in (*stage.clients, *stage.workers, stage.operating):
            stage.boot(host)

    async def _storm(self) -> None:
        """Everybody acts, and what goes wrong goes wrong, until the last fault is over."""
        self.supervising = [asyncio.create_task(part.keep_up()) for part in self.stage.parts]
        self.acting = {actor.key: asyncio.create_task(self._act(actor)) for actor in self.plan.actors}
        storm_s = self.plan.shape["storm_s"]
        assert isinstance(storm_s, float)
        ends_at = self.world.loop.time() + storm_s
        await asyncio.gather(*(strike(self.stage.part_of(fault.options), fault) for fault in self.plan.faults))
        if self.acting:
            await asyncio.wait(self.acting.values(), timeout=max(0.0, ends_at - self.world.loop.time()))

    async def _act(self, actor: Actor) -> None:
        await asyncio.sleep(actor.at_s)
        stage = self.stage.part_of(actor.options)
        await ACTORS[actor.kind](stage, actor)
        self.world.marks[acted(actor.kind, of_bookkeeper=stage.cluster.tree.of_bookkeeper)] += 1

    async def _leave_all_as_it_is(self) -> None:
        """Nobody acts any more, and nothing goes wrong. A change of directories that has begun is completed."""
        self._calm_down()
        self.stage.ended.set()
        await self._ends("journals")
        await self._ends("directories")
        for host in (*self.stage.clients, *self.stage.workers, self.stage.operating):
            if host.up:
                self.stage.dies(host, power=False)
        left = [*self.acting.values(), *self.supervising]
        for task in left:
            task.cancel()
        await asyncio.wait(left)

    def _calm_down(self) -> None:
        stage = self.stage
        self.world.net.heal()
        for host in self.world.hosts.values():
            host.faults.chances = {}
        for bookie in [bookie for part in stage.parts for bookie in part.cluster.bookies]:
            bookie.host.disk.heal()
            bookie.host.disk.capacity_bytes = 1 << 40
        self.world.record("event", "faults have ended")

    async def _heal(self) -> None:
        """Nothing goes wrong any more; all has to come to its end in bounded time."""
        stage = self.stage
        self._calm_down()
        for host in (*stage.clients, *stage.workers, stage.operating):
            if not host.up:
                stage.boot(host)
        stage.ended.set()
        for bookie in self.cluster.bookies:
            await stage.take_over(bookie, "stop")
        for users in stage.logs.values():
            users.healed = True
        await self._ends("writer")
        await self._ends("visitor")
        await self._ends("log writer")
        await self._ends("doomed log")
        for part in stage.parts:
            await part.within("recovery", _on_operator(part, functools.partial(_recover_all, part)))
        for users in stage.logs.values():
            await stage.within("logs open", _on_operator(stage, functools.partial(log_actors.settle, users)))
            await self._consumed(users)
        for actor in self.plan.actors:
            if actor.kind == "consumer":
                self.acting[actor.key].cancel()
            else:
                await self._end(actor)
        if not {fault.kind for fault in self.plan.faults} & _KEEPS_CREATIONS:
            for part in stage.parts:
                await part.within("cancelled creations leave no ledger", self._taken_back(part), _TAKEN_BACK_WITHIN_S)

        if any(actor.kind == "import" for actor in self.plan.actors):
            await stage.within("imported", _on_operator(stage, functools.partial(imports.settle, stage)))

    async def _taken_back(self, stage: Stage) -> None:
        """No ledger is left of a creation that was cancelled."""
        while any(one.custom_metadata.get(CREATION) in stage.cancelled_creations for one in stage.oracle.ledgers()):
            await asyncio.sleep(0.1)

    async def _ends(self, kind: str) -> None:
        for actor in self.plan.actors:
            if actor.kind == kind:
                await self._end(actor)

    async def _end(self, actor: Actor) -> None:
        await self.stage.within(f"{actor.kind} ends", self.acting[actor.key])

    async def _consumed(self, users: LogUsers) -> None:
        """Its consumer, if it has one, gets everything."""
        mine = [a.key for a in self.plan.actors if a.kind == "consumer" and a.options["log"] == users.name]
        if mine:

            async def all_read() -> None:
                while users.account.tailed < users.account.end:
                    if self.acting[mine[0]].done():
                        self.acting[mine[0]].result()
                    await asyncio.sleep(0.1)

            await self.stage.within("consumers", all_read())

    async def _account(self) -> None:
        stage = self.stage
        for host in stage.clients:
            stage.dies(host, power=False)
        for part in stage.parts:
            await _on_operator(part, functools.partial(self._settle, part))
        for one in self.supervising:
            one.cancel()
        for part in stage.parts:
            await part.within("the account", _on_operator(part, functools.partial(self._check, part)))
        self.world.record("oracle", "satisfied")

    async def _settle(self, stage: Stage, client: Client) -> None:
        """Wait until all is as it has to be."""
        began = self.world.loop.time()
        while left := stage.oracle.unfinished(heals=self._heals(stage)) or await self._left_over(stage, client):
            if self.world.loop.time() > began + HEALED_WITHIN_S:
                raise Violation(*left, stage.cluster.tree)
            await asyncio.sleep(0.25)

    async def _left_over(self, stage: Stage, client: Client) -> tuple[str, str] | None:
        oracle = stage.oracle
        if why := await oracle.in_limbo():
            return "liveness: limbo empty", why
        if self._heals(stage) and (why := await oracle.short(client)):
            return "liveness: every copy there", why
        if why := await oracle.left_over():
            return "liveness: space reclaimed", why
        if why := oracle.memory_left():
            return "liveness: memory released", why
        if nodes := oracle.nodes_left() if isinstance(oracle, BookKeeperOracle) else Nodes(stage).left(oracle):
            return "liveness: no node left over", ", ".join(nodes)
        return None

    async def _check(self, stage: Stage, client: Client) -> None:
        await stage.oracle.check(client, heals=self._heals(stage))

    def _heals(self, stage: Stage) -> bool:
        """Whether workers copy what bookies of that part have lost."""
        return bool(stage.workers) and stage is self.stage


async def _on_operator(stage: Stage, act: Any) -> None:
    assert await stage.on(stage.operating.name, act)


async def _recover_all(stage: Stage, client: Client) -> None:
    oracle = stage.oracle
    for story in list(stage.stories.by_id.values()):
        if story.closed or oracle.story(story.ledger_id).deleted:
            continue
        if story.ledger_id in oracle.may_lose:
            story.ends.append(await _accept_loss(stage, client, story.ledger_id))
        else:
            await stage.recover(stage.operating, client, story)
    # What was created by a client that died before it knew.
    for metadata in [*oracle.ledgers()]:
        if metadata.state is LedgerState.CLOSED or metadata.ledger_id in stage.stories.by_id:
            continue
        if metadata.ledger_id in oracle.may_lose:
            await _accept_loss(stage, client, metadata.ledger_id)
        else:
            with contextlib.suppress(NoSuchLedgerError):  # of a log that is deleted
                await operators.recover(client, metadata.ledger_id, PASSWORD)


async def _accept_loss(stage: Stage, client: Client, ledger_id: int) -> int:
    """As an operator does who knows which bookies never come back, and has waited for the others; the end."""
    while missing := stage.oracle.not_registered():
        stage.world.record("operator", "waits before a loss is accepted", missing)
        await asyncio.sleep(0.2)
    metadata = await operators.accept_loss(client, ledger_id, PASSWORD)
    stage.world.marks[LOSS_ACCEPTED] += metadata.accepted_loss is not None
    return metadata.last_entry


def prepare(plan: Plan) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    """The world of a plan, and what is to run in it."""
    cluster = cluster_of(plan)
    return cluster, Play(plan, cluster).run()


def play(plan: Plan) -> Outcome:
    """Run it in a fresh world. Never raises for a run that fails."""
    outcome = Outcome(plan)
    began = time.process_time()
    cluster, run = prepare(plan)
    started_s = cluster.world.loop.time()
    try:
        cluster.run(run)
    except Exception as error:
        outcome.error = error
        outcome.invariant = error.invariant if isinstance(error, Violation) else UNHANDLED
    outcome.processor_s = time.process_time() - began
    outcome.virtual_s = cluster.world.loop.time() - started_s
    outcome.marks = cluster.world.marks
    outcome.trace = cluster.world.trace
    return outcome


def everything_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    return prepare(Plan.draw(seed))


def everything_long_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    return prepare(Plan.draw(seed, "long"))
