"""The clients of a bookie that are in their TLS handshakes: there is a bound, since each takes a file more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from bkpy.bookie.connection.complaint import Complaint


class ShakingHands:
    """At most `most` clients at once. When one more begins, the oldest is dropped, and `refused` is called."""

    def __init__(self, most: int, refused: Callable[[], None], complain: Complaint) -> None:
        self._most = most
        self._refused = refused
        self._complain = complain
        self._under_way: dict[Hashable, tuple[str, Callable[[], None]]] = {}  # in order of arrival

    def __contains__(self, client: Hashable) -> bool:
        return client in self._under_way

    def begin(self, client: Hashable, address: str, drop: Callable[[], None]) -> None:
        self._under_way[client] = address, drop
        if len(self._under_way) > self._most:
            oldest = next(iter(self._under_way))
            self._refused()
            self._complain(
                "refused %s: %d other clients are in their TLS handshakes (tls_handshakes_max)",
                self._under_way[oldest][0],
                self._most,
            )
            self._drop(oldest)

    def end(self, client: Hashable) -> None:
        self._under_way.pop(client, None)

    def drop_all(self) -> None:
        for client in list(self._under_way):
            self._drop(client)

    def _drop(self, client: Hashable) -> None:
        _, drop = self._under_way.pop(client)
        drop()
