"""What those who look after a cluster's ledgers are given of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bkpy.protocol.rereplication import Bookies

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.registration import BookieDirectory
    from bkpy.protocol.ledger_metadata import LedgerMetadata


class Upkeep(NamedTuple):
    """`recover` closes a ledger by its id without knowing its password, and returns the CLOSED metadata."""

    cluster: Cluster
    directory: BookieDirectory
    parts: ReplicationParts
    recover: Callable[[int], Coroutine[Any, Any, LedgerMetadata]]

    def bookies(self) -> Bookies:
        """The bookies that are registered now."""
        writable = frozenset(self.directory.bookies)
        return Bookies(writable | self.directory.read_only.keys(), writable)


class HasUpkeep(Protocol):
    """A client."""

    @property
    def upkeep(self) -> Upkeep: ...
