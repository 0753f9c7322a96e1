"""Which watches are set on the server, so that events find them and a new connection can set them again.

The server keeps watches per connection and forgets one when it fires; a `Watch` here is registered exactly while the
server holds it or is just being asked to.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from aiozk import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.metadata.store.store import Watch

# One SetWatches request stays well under the server's limit of 1 MiB a request.
SET_WATCHES_BYTES_MAX = 256 << 10


class WatchKind(enum.Enum):
    """The list of a SetWatches request that a watch belongs in."""

    DATA = "data"  # the node was there when the watch was set
    EXIST = "exist"  # it was not
    CHILD = "child"


class WatchTable:
    def __init__(self) -> None:
        self._by_path: dict[str, dict[Watch, WatchKind | None]] = {}

    def register(self, watch: Watch, kind: WatchKind | None = None) -> None:
        """Before the request that sets the watch, with no kind; after its reply, with the kind that it turned out as.

        Registered before, because the first event may follow the reply in the same packet.
        """
        if kind is None:
            self._by_path.setdefault(watch.path, {})[watch] = None
        elif watch in self._by_path.get(watch.path, ()):  # else it was woken before the reply and is used up
            self._by_path[watch.path][watch] = kind

    def forget(self, watch: Watch) -> None:
        watches = self._by_path.get(watch.path)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._by_path[watch.path]

    def dispatch(self, event: Any) -> None:
        """Wake the watches that the event may concern."""
        for watch in list(self._by_path.get(event.path, ())):
            other = protocol.WatchEvent.DATA_CHANGED if watch.children else protocol.WatchEvent.CHILDREN_CHANGED
            if event.type != other:  # creation and deletion concern both
                self.forget(watch)
                watch.wake()

    def wake_all(self) -> None:
        """The session is gone, and every watch with it."""
        by_path, self._by_path = self._by_path, {}
        for watches in by_path.values():
            for watch in watches:
                watch.wake()

    def requests(self, last_zxid: int) -> Iterator[Any]:
        """SetWatches requests for all watches. The server fires one at once if its node changed after `last_zxid`."""
        request = _request(last_zxid)
        size = 0
        for path, watches in self._by_path.items():
            kinds = {kind for kind in watches.values() if kind is not None}
            cost = len(kinds) * (len(path.encode()) + 4)
            if size and size + cost > SET_WATCHES_BYTES_MAX:
                yield request
                request, size = _request(last_zxid), 0
            size += cost
            for kind in kinds:
                getattr(request, f"{kind.value}_watches").append(path)
        if size:
            yield request


def _request(last_zxid: int) -> Any:
    return protocol.SetWatchesRequest(relative_zxid=last_zxid, data_watches=[], exist_watches=[], child_watches=[])
