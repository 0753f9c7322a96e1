"""The interfaces by which a bookie, and commands about one, use the layers above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.storage.losses import Losses


class BackgroundService(Protocol):
    """Runs beside a bookie, in its process, and by itself."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class IntegrityChecker(BackgroundService, Protocol):
    """Finds the entries that the bookie is missing, copies them from other bookies, and ends its limbo."""

    def begin(self) -> bool:
        """Check all ledgers now; False if a check is under way."""

    def status(self) -> dict[str, Any]:
        """Its progress, for JSON."""


class Peers(Protocol):
    """The cluster's other bookies, as a command about a stopped bookie needs them. The command calls `close`."""

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close the ledger; returns its CLOSED metadata."""

    async def answers(self, bookie_id: str) -> bool:
        """Whether the bookie answers at its last known address."""

    async def close(self) -> None: ...


if TYPE_CHECKING:
    OpenPeers = Callable[[], Awaitable[Peers]]
    # The second argument counts the frames that clients have appended to the bookie.
    NewBackgroundService = Callable[[CollectorRegistry, Callable[[], int]], BackgroundService]
    NewIntegrityChecker = Callable[[Losses, CollectorRegistry], IntegrityChecker]
