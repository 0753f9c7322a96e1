"""What the server needs of a connection, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Set

    from bkpy.bookie.service import BookieService
    from bkpy.protocol.access import Right
    from bkpy.protocol.wire.messages import Hello, Status
    from bkpy.protocol.wire.receive_buffer import ReceiveBuffer
    from bkpy.runtime.tls import Certificates


class ServedKeys(Protocol):
    """The keys of one connection; of none before its client has shown one. `authorised`: the ledgers it has opened."""

    def __len__(self) -> int: ...

    @property
    def authorised(self) -> Set[int]: ...

    def withdraw(self, ledger_id: int) -> None: ...


class ServedConnection(Protocol):
    """One client. `stalls`: whether it makes progress. `names`: of its certificate."""

    address: str
    names: tuple[str, ...]
    stalls: StallWatch

    @property
    def keys(self) -> ServedKeys: ...

    @property
    def busy(self) -> bool: ...

    def know_rights(self) -> None: ...

    def no_right(self, to: str) -> str: ...

    def count_idle_tick(self) -> float | None: ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ConnectionOwner(Protocol):
    """The server, which keeps all connections of the bookie."""

    def opened(self, connection: ServedConnection) -> None:
        """It was accepted."""

    def rights_of(self, names: tuple[str, ...]) -> Right:
        """The rights of a client whose certificate has these names."""

    def greet(self, connection: ServedConnection, hello: Hello) -> tuple[Status, str]:
        """The client has introduced itself: whether it may stay, and else why not."""

    def closed(self, connection: ServedConnection) -> None:
        """It is gone."""

    def memory_full(self) -> None:
        """The storage has no memory for further entries now."""


NewConnection = Callable[["BookieService", ConnectionOwner], ServedConnection]


class DiskSpace(Protocol):
    """The space of all ledger directories together, at the last look."""

    free_bytes: int
    total_bytes: int


class OtherProtocol(Protocol):
    """Makes connections of another protocol than bkpy's."""

    def __call__(
        self,
        service: BookieService,
        owner: ConnectionOwner,
        *,
        disk: DiskSpace,
        certificates: Certificates | None,
    ) -> ServedConnection: ...


class StallWatch:
    """Counts for how many ticks a client has stalled.

    A client stalls that has sent part of a frame, or has replies to read, and makes no progress with them; while
    others wait for that memory, too little progress.
    """

    def __init__(self, service: BookieService) -> None:
        self.ticks = 0
        self._service = service
        self._last = (-1, 0)  # bytes received, bytes yet to be read by the client, when it last made progress

    def tick(
        self, receive: ReceiveBuffer, received_bytes: int, unread: int, *, paused: bool, greeting_s: float | None
    ) -> float | None:
        """Count a tick: returns how many seconds a stall may last, None for an idle client.

        `greeting_s`: how many that is for a client that has yet to introduce itself. A silent client that is idle
        loses its receive buffer.
        """
        settings = self._service.settings
        allowed_s: float | None = None
        under_pressure = False
        if unread:
            allowed_s, under_pressure = settings.reply_stall_timeout_s, self._service.answers.wanted
        elif paused:
            pass
        elif greeting_s is not None:
            allowed_s = greeting_s
        elif receive.partial:
            under_pressure = bool(receive.charged) and self._service.receive_budget.wanted
            allowed_s = settings.memory_pressure_stall_timeout_s if under_pressure else settings.frame_stall_timeout_s
        wanted = settings.memory_pressure_bytes_per_s_min * allowed_s if under_pressure and allowed_s is not None else 1
        silent = not self._progressed(received_bytes, unread, wanted)
        if silent and allowed_s is None and not paused:
            receive.release_idle()
        self.ticks = self.ticks + 1 if silent and allowed_s is not None else 0
        return allowed_s

    def _progressed(self, received_bytes: int, unread: int, wanted: float) -> bool:
        """Whether the client has sent or read `wanted` bytes since it made progress last."""
        received, unread_then = self._last
        if received_bytes - received >= wanted or unread_then - unread >= wanted or bool(unread) < bool(unread_then):
            self._last = (received_bytes, unread)
            return True
        self._last = (received, max(unread, unread_then))  # answers that were under way may add to it
        return False
