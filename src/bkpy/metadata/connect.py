"""From a metadata URI to a connected store."""

from __future__ import annotations

import ssl as tls
from collections.abc import Sequence

from bkpy.metadata.store import MetadataStore
from bkpy.metadata.uri import parse_uri
from bkpy.metadata.zookeeper.store import ZooKeeperStore
from bkpy.runtime import Runtime


async def connect_store(
    uri: str,
    runtime: Runtime,
    *,
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    ssl: tls.SSLContext | None = None,
    auth: Sequence[tuple[str, bytes]] = (),
) -> tuple[MetadataStore, str]:
    """A connected store and the cluster's root node; the caller closes the store.

    Raises `ConfigError` for a URI that isn't one and `MetadataUnavailableError` if no server is reached in time.
    """
    where = parse_uri(uri)
    store = ZooKeeperStore(where.hosts, runtime, session_timeout_s=session_timeout_s, tls=ssl, auth=auth)
    await store.start(connect_timeout_s)
    return store, where.root
