"""The end of a run whose metadata store goes back to an older copy: bookies notice, and collect nothing.

Ledgers that were created since are missing in the copy, and look like deleted ones. A bookie with entries of an id that
the copy has not given out keeps all that it has. What was closed before the copy was taken is read as before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.client.client import replication_context
from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from tests.sim.cluster import ROOT
from tests.sim.coverage_marks import WENT_BACK

from .oracle import LedgerStory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.client.client import Client
    from tests.sim.cluster import Bookie

    from .stage import Stage

_WHEN = "after the metadata store went back, "
COLLECTS_WITHIN_S = 10.0  # several rounds of every bookie's collection


class Held(NamedTuple):
    """What a bookie has, and of which ledgers it has entries."""

    ledgers: list[int]
    with_entries: list[int]


class GoneBack:
    """The store goes back to `older`, when all that was to happen has."""

    def __init__(self, stage: Stage, older: Mapping[str, Any]) -> None:
        self.stage = stage
        self.older = older
        self.rng = stage.schedule.stream("gone back")

    async def play(self) -> None:
        stage = self.stage
        for host in stage.workers:
            stage.dies(host, power=False)
        before = await self._go_back(self._bookies())
        await asyncio.sleep(COLLECTS_WITHIN_S)
        assert await stage.on(stage.operating.name, lambda client: self._check(client, before))

    def _bookies(self) -> list[Bookie]:
        """The bookies that the copy knows as they are: others have to be looked after by hand."""
        found = []
        for bookie in self.stage.cluster.bookies:
            cookie = paths.cookie(ROOT, bookie.settings.bookie_id)
            if cookie in self.older and self.stage.oracle.data(cookie) == self.older[cookie].data and bookie.host.up:
                found.append(bookie)
            elif bookie.host.up:
                bookie.host.crash()
        return found

    async def _go_back(self, bookies: Sequence[Bookie]) -> dict[Bookie, Held]:
        """What each bookie has then. All servers are down meanwhile: no call spans it, and sessions end."""
        stage = self.stage
        sessions = [(bookie, session) for bookie in bookies for session in bookie.host.sessions]
        for bookie, session in sessions:
            bookie.host.do(session.suspend)
        await asyncio.sleep(stage.world.metadata_timeout_s + 0.1)
        held = {
            bookie: Held(await bookie.held(), [ledger_id for ledger_id, ids in bookie.promises.items() if ids])
            for bookie in bookies
        }
        stage.world.metadata.put_back(self.older)
        self._forget_what_is_newer()
        stage.world.record("event", "the metadata store has gone back to an older copy")
        for bookie, session in sessions:
            if session in bookie.host.sessions:
                bookie.host.do(session.expire)
                bookie.host.do(session.resume)
        if self.rng.random() < 0.5:
            for bookie in bookies:
                if bookie.host.up:
                    bookie.host.crash()
                await stage.start(bookie)
        # One without a journal has lost by that what it had in memory.
        return {
            bookie: Held(before.ledgers, [ledger_id for ledger_id in before.with_entries if bookie.promises[ledger_id]])
            for bookie, before in held.items()
        }

    def _forget_what_is_newer(self) -> None:
        """Nothing is promised of a ledger that was written, or closed, since: a bookie in doubt may recover it."""
        oracle = self.stage.oracle
        for story in self.stage.stories.by_id.values():
            data = oracle.data(LONG_HIERARCHICAL.path_of(ROOT, story.ledger_id))
            if data is None or LedgerMetadata.decode(story.ledger_id, data) != story.stored:
                oracle.story(story.ledger_id).deleted = True

    async def _check(self, client: Client, before: Mapping[Bookie, Held]) -> None:
        given = await replication_context(client).cluster.catalog.ids_given()
        for bookie, held in before.items():
            newer = [ledger_id for ledger_id in held.with_entries if ledger_id >= given.below]
            if not newer:
                continue  # nothing tells it
            self.stage.world.marks[WENT_BACK] += 1
            if not bookie.host.up:
                self._violated("liveness: bookies up", f"{bookie.host.name} is down")
            elif collected := sorted({*held.ledgers}.difference(await bookie.held())):
                self._violated("I2", f"{bookie.host.name} has {newer}, which are newer, and collected {collected}")
        here = {bookie.settings.bookie_id for bookie in before}
        for story in self.stage.stories.by_id.values():
            assert isinstance(story, LedgerStory)
            if (
                not story.deleted
                and story.stored.accepted_loss is None
                and here.issuperset(story.stored.needed_bookies)
            ):
                await self._check_ledger(client, story)

    async def _check_ledger(self, client: Client, story: LedgerStory) -> None:
        """What was closed before the copy was taken, and has not changed since, is there as before."""
        if not self.stage.oracle.is_stored(story.ledger_id):
            return
        metadata = await client.ledger_metadata(story.ledger_id)
        if metadata != story.stored or metadata.state is not LedgerState.CLOSED:
            return
        await self.stage.oracle.check_contents(client, story, _WHEN)

    def _violated(self, invariant: str, what: str) -> None:
        self.stage.oracle.violate(invariant, f"{_WHEN}{what}")
