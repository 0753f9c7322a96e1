"""What a bookie is given to run beside it, and knows no more of than this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from bkpy.storage.losses import Losses


class Companion(Protocol):
    """What runs beside a bookie, and for itself."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class Mender(Companion, Protocol):
    """What finds out what the bookie lacks, copies it from others, and ends its limbo."""

    def begin(self) -> bool:
        """Look through everything now; False if that goes on already."""

    def status(self) -> dict[str, Any]:
        """How far it is, for JSON."""


if TYPE_CHECKING:
    # The second one counts the frames that clients have appended to the bookie.
    NewCompanion = Callable[[CollectorRegistry, Callable[[], int]], Companion]
    NewMender = Callable[[Losses, CollectorRegistry], Mender]
