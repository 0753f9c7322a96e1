"""What tests look at inside of a client that no user gets: in one place, so that its parts may be arranged anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.client import Client
    from bkpy.client.write.dispatcher import AddDispatcher
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.cluster import Cluster


def pool_of(client: Client) -> BookiePool:
    """The client's channels to bookies."""
    return client._pool


def cluster_of(client: Client) -> Cluster:
    """The metadata of the client's cluster."""
    return client._cluster


def dispatcher_of(client: Client) -> AddDispatcher:
    """What sends the batches of the client's writers."""
    return client._dispatcher


def window_of(writer: LedgerWriter) -> tuple[int, int]:
    """The bytes and the entries that fill the writer's window."""
    return writer._pending.window_bytes, writer._pending.window_entries
