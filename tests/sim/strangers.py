"""A stranger at the bookies' ports: knows no password, and is the first to present keys for ids that are still to come.

With some of these keys it fences, with some it publishes where a ledger ends. It has no certificate of anybody's, and
needs none where bookies ask for none. Whatever it does, writers and recoveries with the right passwords go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL, next_id
from bkpy.protocol.wire.messages import Flags, Op, Status, pack, reply_status
from tests.hooks import pool_of

from .coverage_marks import STRANGER_FIRST

if TYPE_CHECKING:
    from bkpy.client.client import Client

    from .cluster import Cluster

ROOT = "/ledgers"
SHARE = 0.5  # of the runs in which there is one
AHEAD = (1, 3, 10)  # ids


class Stranger:
    """Made before the run begins; `haunt` goes on until it is cancelled."""

    def __init__(self, cluster: Cluster, *, comes: bool = False) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.stream("stranger")
        self._comes = self._rng.random() < SHARE or comes
        self._host = self._world.add_host("stranger")

    @contextlib.asynccontextmanager
    async def about(self):  # type: ignore[no-untyped-def]
        """The stranger is there meanwhile, in some runs."""
        if not self._comes:
            yield
            return
        self._host.boot()
        haunting = self._host.start(self._haunt(), name="stranger")
        try:
            yield
        finally:
            haunting.cancel()
            await asyncio.wait([haunting])

    async def _haunt(self) -> None:
        async with self._cluster.client(self._host, calm=True, connect_timeout_s=1.0, read_timeout_s=1.0) as client:
            session = self._host.sessions[-1]
            seen = 0
            while True:
                coming = await next_id(session, ROOT, LONG_HIERARCHICAL)
                for ledger_id in range(max(seen, coming), coming + self._rng.choice(AHEAD)):
                    for bookie in self._rng.sample(self._cluster.bookies, self._rng.randrange(1, 4)):
                        await self._present(client, ledger_id, bookie.settings.bookie_id)
                    seen = ledger_id + 1
                await asyncio.sleep(self._rng.random() ** 2)

    async def _present(self, client: Client, ledger_id: int, bookie_id: str) -> None:
        pool = pool_of(client)
        pool.add_key(ledger_id, self._rng.randbytes(32))
        try:
            call = pool.channel(bookie_id).call_as_owner
            reply = await call(Op.READ_LAC, pack([int(Flags.RECOVERY), ledger_id]), ledger_id=ledger_id, timeout_s=1.0)
            self._world.marks[STRANGER_FIRST] += reply_status(reply.head) == Status.OK
        except BookKeeperError:
            pass
        finally:
            pool.forget_key(ledger_id)
