"""The parts of a client that re-replication and operators' commands work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.protocol.repair.rereplication import Bookies

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.recovery.ledger_recovery import Everywhere, LedgerRecovery


class ReplicationContext(NamedTuple):
    """`recover` closes a ledger by its id without knowing its password, and returns the CLOSED metadata; `fence` only
    sees to it that nothing is acknowledged to its writer any more.

    `recovery_giving_up` prepares one that does without bookies that are gone; it is given the ledger's id and password,
    and the entry before which the ledger is not to be closed. `recover_everywhere` closes a ledger of a restored
    cluster.
    """

    cluster: Cluster
    directory: BookieDirectory
    parts: ReplicationParts
    recover: Callable[[int], Coroutine[Any, Any, LedgerMetadata]]
    fence: Callable[[int], Coroutine[Any, Any, None]]
    recovery_giving_up: Callable[[int, bytes, int], Coroutine[Any, Any, LedgerRecovery]]
    recover_everywhere: Callable[[int, Everywhere], Coroutine[Any, Any, LedgerMetadata]]

    def bookies(self) -> Bookies:
        """The bookies that are registered now."""
        return bookies_of(self.directory)


def bookies_of(directory: BookieDirectory) -> Bookies:
    """The bookies that are registered now."""
    infos = {**directory.bookies, **directory.read_only}
    in_limbo = frozenset(name for name, info in infos.items() if info.in_limbo)
    return Bookies(directory.readable, frozenset(directory.bookies), in_limbo)


def incomplete_bookies(record: UnderreplicationRecord, directory: BookieDirectory) -> frozenset[str]:
    """The bookies of the record that are here and merely miss entries: they may keep their places.

    A bookie in limbo isn't among them: it copies back what it lost, under the ledger's lock, and reports the end.
    """
    return frozenset(filter(directory.is_here, record.incomplete))
