"""The second cluster of some seeds: bookies with BookKeeper's protocol, under a root of BookKeeper's in the same store.

Its users are in the processes of the others, and what goes wrong there strikes both. Its oracle is the same one. There
are no workers: bkpy's heal no such cluster, so every entry has to be on an ack quorum, and no more. A bookie without a
journal that dies is in limbo for good, and takes no new ledgers: then there is another bookie.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from bkpy.metadata import paths
from bkpy.metadata.bookkeeper.layout import HYBRID, SHORT_IDS
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from tests.in_process import init_bookkeeper
from tests.sim.cluster import Bookie, Cluster, Tree

from .oracle import Oracle
from .stage import without_journal

if TYPE_CHECKING:
    from .stage import Stage

BOOKKEEPER = Tree("/bookkeeper", HYBRID, BookKeeperLedgerMetadata, of_bookkeeper=True)
BOOKIES = 3  # and one more where one of them has no journal

_NODES = (
    *("", paths.INSTANCE_ID, paths.LAYOUT, paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES, SHORT_IDS),
    *(f"({paths.AVAILABLE}|{paths.READ_ONLY}|{paths.COOKIES})/bk-[1-{BOOKIES + 1}]", r"\d{2}(/\d{4}(/L\d{4})?)?"),
)
_ALLOWED = re.compile("|".join(f"({one})" for one in _NODES))


class BookKeeperCluster(Cluster):
    """Some bookies beside those of `cluster`."""

    tree = BOOKKEEPER

    def __init__(self, cluster: Cluster, bookies: int, **settings: Any) -> None:
        self.world = cluster.world
        self.calm = True
        self.client_host = cluster.client_host
        settings = {**settings, "protocol": "bookkeeper"}
        self.bookies = [
            Bookie(self.world, f"bk-{n + 1}", calm=True, tree=BOOKKEEPER, **settings) for n in range(bookies)
        ]
        self.ledgers = {}

    async def start(self) -> None:
        await self.client_host.start(init_bookkeeper(self.client_host.session(), self.tree.root))
        await asyncio.gather(*(bookie.start() for bookie in self.bookies))


class BookKeeperOracle(Oracle):
    """Of that cluster, in which no limbo matters to workers."""

    def _ledger_of(self, path: str) -> int | None:
        root, _, below = path.partition(f"{self.tree.root}/")
        return None if root else self.tree.layout.id_of(below)

    def says_limbo(self, registration: bytes | None) -> bool:
        return False

    def _recovers(self, ledger_id: int) -> None:
        """Only workers of the other cluster are watched for it."""

    def nodes_left(self) -> list[str]:
        """The nodes that nobody needs."""
        found = [path.removeprefix(self.tree.root) for path in self.world.metadata.paths if self._is_mine(path)]
        return [path for path in found if not _ALLOWED.fullmatch(path.removeprefix("/"))]

    def _is_mine(self, path: str) -> bool:
        return path == self.tree.root or path.startswith(f"{self.tree.root}/")


def bookkeeper_part(stage: Stage, settings: dict[str, Any]) -> Stage:
    """The users of such a cluster, in the processes of `stage`."""
    forgets = stage.schedule.shape.get("bookkeeper_without_journal")
    cluster = BookKeeperCluster(stage.cluster, BOOKIES + (forgets is not None), **settings)
    if forgets is not None:
        without_journal(cluster.bookies[int(forgets)])  # type: ignore[arg-type]
    return stage.beside(cluster, BookKeeperOracle(cluster))
