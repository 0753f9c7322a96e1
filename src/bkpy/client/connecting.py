"""`connect`: from a URI to a `Client` that owns its session; and `threadsafe`, for threads that share it."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from bkpy.client.client import Client, loop_guard, open_client
from bkpy.config.checking import current_names
from bkpy.config.client import ClientSettings, client_settings
from bkpy.metadata.audit_trail import client_actor
from bkpy.metadata.connect import connect_store
from bkpy.runtime.process import process_runtime
from bkpy.runtime.threadsafe import ThreadsafeCalls

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Unpack

    from bkpy.client.bookies.placement import Placement
    from bkpy.config.client_arguments import ClientArguments
    from bkpy.runtime.tls import TlsContext


class Connecting(Coroutine[Any, Any, Client]):
    """What `connect` returns: `await` it for a `Client`, or use it as an asynchronous context.

    It is a coroutine as well, for `asyncio.run` and `asyncio.create_task`.
    """

    def __init__(
        self,
        uri: str,
        settings: ClientSettings,
        *,
        ssl: TlsContext | None = None,
        tls: TlsContext | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._uri = uri
        self._settings = settings
        self._ssl = ssl
        self._tls = tls
        self._placement = placement
        self._client: Client | None = None
        self._entered = False
        self._running: Coroutine[Any, Any, Client] | None = None

    async def _connect(self) -> Client:
        runtime = process_runtime()
        store, root = await connect_store(
            self._uri,
            runtime,
            session_timeout_s=self._settings.session_timeout_s,
            connect_timeout_s=self._settings.metadata_timeout_s,
            refused_timeout_s=self._settings.metadata_refused_timeout_s,
            call_timeout_s=self._settings.metadata_timeout_s,
            ssl=self._ssl,
            settings=self._settings,
        )
        try:
            return await open_client(
                store,
                root,
                runtime,
                self._settings,
                placement=self._placement,
                owns_store=True,
                tls=self._tls,
                actor=client_actor(self._settings, runtime),
                of_bookkeeper=True,
            )
        except BaseException:
            await store.close()
            raise

    @property
    def _coroutine(self) -> Coroutine[Any, Any, Client]:
        if self._running is None:
            self._running = self._connect()
        return self._running

    def send(self, value: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._coroutine.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._coroutine.throw(typ if val is None else val if isinstance(val, BaseException) else typ(val))

    def close(self) -> None:
        """See `collections.abc.Coroutine`."""
        if self._running is not None:
            self._running.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        if self._entered:  # the first to leave would close the client of the other
            raise RuntimeError("this connection is the context of another `async with`: call bkpy.connect for each")
        self._entered = True
        try:
            self._client = await self._connect()
        except BaseException:
            self._entered = False
            raise
        return self._client

    async def __aexit__(self, *error: Any) -> None:
        assert self._client is not None
        client, self._client, self._entered = self._client, None, False
        await client.__aexit__(*error)

    def __enter__(self) -> NoReturn:
        raise TypeError("bkpy.connect needs `async with`, in a coroutine: a script uses `with bkpy.connect_sync(uri)`")

    def __exit__(self, *error: object) -> None:
        """See `__enter__`, which raises first."""


def connect(
    uri: str,
    *,
    ssl: TlsContext | None = None,
    tls: TlsContext | None = None,
    placement: Placement | None = None,
    **settings: Unpack[ClientArguments],
) -> Connecting:
    """Connect to the cluster at `uri`, "zk://host:port[,host:port...]/root".

    `settings` are those of `ClientSettings` by name. `tls` secures the connections to bookies, in place of the settings
    `tls_ca_file`, `tls_certificate_file` and `tls_key_file`; `ssl` the one to ZooKeeper. Raises `ConfigError` for a bad
    URI or setting, `NoSuchClusterError` if no cluster was initialised there, `MetadataUnavailableError` if no server
    could be reached within `metadata_timeout_s`, or `metadata_refused_timeout_s` if all refuse at once.

    A former name of a setting, and a setting that has become internal, is a `DeprecationWarning`.
    """
    return connecting(uri, settings, ssl=ssl, tls=tls, placement=placement)


def connecting(uri: str, settings: ClientArguments, **given: Any) -> Connecting:
    """`connect`, for a function that stands between it and its caller, whom warnings name."""
    notices: list[str] = []
    named = current_names(ClientSettings, settings, "argument", notices.append)
    for notice in notices:
        warnings.warn(notice, DeprecationWarning, stacklevel=3)
    return Connecting(uri, client_settings(**named), **given)


def connect_tuned(uri: str, **settings: Any) -> Connecting:
    """`connect` for parts of this package and for tests: it takes tuning values as well, and knows no former names."""
    return Connecting(uri, client_settings(**settings))


def threadsafe(client: Client) -> ThreadsafeCalls:
    """The calls of `client`, and of all that it made, for threads other than its event loop's."""
    return ThreadsafeCalls(loop_guard(client))
