"""From a metadata URI to a connected store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.config.base import MetadataSettings
from bkpy.metadata.uri import parse_uri
from bkpy.metadata.zookeeper.store import ZooKeeperStore

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Sequence

    from bkpy.metadata.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

_DEFAULTS = MetadataSettings()


async def connect_store(
    uri: str,
    runtime: Runtime,
    *,
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    refused_timeout_s: float | None = 1.0,
    call_timeout_s: float | None = None,
    ssl: tls.SSLContext | None = None,
    auth: Sequence[tuple[str, bytes]] = (),
    settings: MetadataSettings = _DEFAULTS,
) -> tuple[MetadataStore, str]:
    """A connected store and the cluster's root node; the caller closes the store.

    A call waits at most `call_timeout_s` for its answer, by default the session's timeout. Raises `ConfigError` for a
    URI that isn't one, and `MetadataUnavailableError` if no server is reached in time, or if every server refuses the
    connection at once for `refused_timeout_s`, as where none is running; None waits for one to be started.
    """
    where = parse_uri(uri)
    store = ZooKeeperStore(
        where.hosts,
        runtime,
        session_timeout_s=session_timeout_s,
        call_timeout_s=call_timeout_s,
        tls=ssl,
        auth=auth,
        settings=settings,
    )
    await store.start(connect_timeout_s, refused_timeout_s)
    return store, where.root
