"""Connects a store by a metadata URI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.config.password_file import read_user_and_password
from bkpy.config.shared import MetadataSettings
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.metadata.uri import parse_uri
from bkpy.runtime.tls import Certificates, Side, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.tls import TlsContext

_DEFAULTS = MetadataSettings()


async def connect_store(
    uri: str,
    runtime: Runtime,
    *,
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    refused_timeout_s: float | None = 1.0,
    call_timeout_s: float | None = None,
    ssl: TlsContext | None = None,
    auth: Sequence[tuple[str, bytes]] = (),
    settings: MetadataSettings = _DEFAULTS,
) -> tuple[MetadataStore, str]:
    """A connected store and the cluster's root node; the caller closes the store.

    `ssl` and `auth` come from the settings by default. A call waits at most `call_timeout_s` for its answer, by default
    the session's timeout. Raises `ConfigError` for a bad URI or unusable files, and `MetadataUnavailableError` if no
    server is reached in time, or if every server refuses the connection for `refused_timeout_s`; None waits for a
    server to be started.
    """
    where = parse_uri(uri)
    store = ZooKeeperStore(
        where.hosts,
        runtime,
        session_timeout_s=session_timeout_s,
        call_timeout_s=call_timeout_s,
        tls=ssl or _certificates(settings),
        auth=auth or zookeeper_credentials(settings),
        settings=settings,
    )
    await store.start(connect_timeout_s, refused_timeout_s)
    return store, where.root


def zookeeper_credentials(settings: MetadataSettings) -> list[tuple[str, bytes]]:
    """The (scheme, credential) pairs of the settings for ZooKeeper, if any. Raises `ConfigError`."""
    if settings.zookeeper_auth is not None:
        return [("digest", settings.zookeeper_auth.get_secret_value().encode())]
    if settings.zookeeper_auth_file is not None:
        return [("digest", read_user_and_password(settings.zookeeper_auth_file))]
    return []


def _certificates(settings: MetadataSettings) -> Certificates | None:
    if settings.zookeeper_tls_ca_file is None:
        return None
    own = (settings.zookeeper_tls_certificate_file, settings.zookeeper_tls_key_file)
    return Certificates(TlsFiles(settings.zookeeper_tls_ca_file, *own), Side.ZOOKEEPER)
