"""What a bookie, or a command about one, is given of the layers above, and knows no more of than this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.storage.losses import Losses


class BackgroundService(Protocol):
    """What runs beside a bookie, and for itself."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class IntegrityChecker(BackgroundService, Protocol):
    """What finds out what the bookie lacks, copies it from others, and ends its limbo."""

    def begin(self) -> bool:
        """Look through everything now; False if that goes on already."""

    def status(self) -> dict[str, Any]:
        """How far it is, for JSON."""


class Peers(Protocol):
    """The cluster's other bookies, as a command about a stopped bookie needs them. `close` once nobody does."""

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close the ledger; returns its CLOSED metadata."""

    async def answers(self, bookie_id: str) -> bool:
        """Whether the bookie answers at the address that it had last."""

    async def close(self) -> None: ...


if TYPE_CHECKING:
    OpenPeers = Callable[[], Awaitable[Peers]]
    # The second one counts the frames that clients have appended to the bookie.
    NewBackgroundService = Callable[[CollectorRegistry, Callable[[], int]], BackgroundService]
    NewIntegrityChecker = Callable[[Losses, CollectorRegistry], IntegrityChecker]
