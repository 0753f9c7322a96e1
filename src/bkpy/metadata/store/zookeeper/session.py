"""A ZooKeeper session that outlives connections, servers and, by starting anew, itself.

Invariants: no write is ever sent twice; the session's id and password are kept until a server says that the session is
gone; every call ends by its deadline; the state is SUSPENDED from the moment a connection ends until the next one has
authenticated and set all watches again.
"""

from __future__ import annotations

import asyncio
import errno
import re
from typing import TYPE_CHECKING, Any

from aiozk import exc, protocol

from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.outcome import NotDone, to_error
from bkpy.metadata.store.store import SessionEvents, SessionState
from bkpy.metadata.store.zookeeper.connection import ConnectionLost, ZooKeeperConnection
from bkpy.metadata.store.zookeeper.probe import SpeaksTlsError, speaks_tls
from bkpy.metadata.store.zookeeper.watches import WatchTable
from bkpy.runtime.tls import Certificates, explained, is_tls_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.config.shared import MetadataSettings
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.tls import TlsContext

# Answers by a server that no longer serves this session; the request was not carried out.
_SESSION_ERRORS = (exc.SessionExpired, exc.SessionMoved, exc.UnknownSession)
_OPEN_FAILURES = (OSError, TimeoutError, ConnectionLost, exc.ResponseError)
# Where a name has several addresses, the error has no number of its own, and those of all of them in its text.
_ERROR_NUMBER = re.compile(r"\[Errno (\d+)\]")
_REFUSED = "the connection is refused"
_NOBODY_THERE = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}  # the latter of an IPv6 address on a host without


class _NoServer(Exception):  # noqa: N818 - what was found, for `_run`
    """No server is running at any of the addresses."""


class Session:
    """`auth` is a list of (scheme, credential) that is presented on every connection, `tls` what secures them all."""

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        runtime: Runtime,
        settings: MetadataSettings,
        *,
        session_timeout_s: float,
        call_timeout_s: float,
        tls: TlsContext | Certificates | None = None,
        auth: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.events = SessionEvents()
        self.watches = WatchTable()
        self.session_id = 0
        self.session_timeout_s = session_timeout_s  # as asked for, then as the server granted it
        self.call_timeout_s = call_timeout_s
        self._asked_timeout_ms = int(session_timeout_s * 1000)
        self._runtime = runtime
        self._settings = settings
        self._tls = tls
        self._auth = tuple(auth)
        self._hosts = runtime.rng.sample(list(hosts), len(hosts))  # clients spread over the servers
        self._next_host = 0
        self._password = bytes(16)
        self._last_zxid = 0
        self._connection: ZooKeeperConnection | None = None
        self._settled = asyncio.Event()  # connected, or there never will be a connection again
        self._fatal: BookKeeperError | None = None
        self._last_failure = "no server was tried yet"
        self._slots = asyncio.Semaphore(settings.metadata_requests_in_flight_max)
        self._task: asyncio.Task[Any] | None = None
        self._refused_timeout_s: float | None = None
        self._first = True  # until there was a connection

    async def start(self, connect_timeout_s: float, refused_timeout_s: float | None = None) -> None:
        """Return once connected.

        Raises `UnauthorizedError`, and `MetadataUnavailableError` after `connect_timeout_s`, or if all servers have
        refused the connection at once for `refused_timeout_s`, or speak TLS and this side doesn't.
        """
        self._refused_timeout_s = refused_timeout_s
        self._task = self._runtime.spawn(self._run(), name="zookeeper-session", on_death=self._die)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await self._usable_connection()
        except TimeoutError:
            await self.close()
            raise MetadataUnavailableError(
                f"no ZooKeeper server could be reached within {connect_timeout_s:g} s, of {self._addresses()}; "
                f"the last failure: {self._last_failure}"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, telling the server if that can be done within a second."""
        if isinstance(self._fatal, ClientClosedError):
            return
        connection = self._connection
        self._fail(ClientClosedError("the metadata session is closed"))
        if self._task is not None:
            self._task.cancel()
        if connection is not None and connection.usable():
            try:
                async with asyncio.timeout(self._settings.metadata_close_timeout_s):
                    await connection.send(protocol.CloseRequest())
            except (TimeoutError, ConnectionLost, exc.ResponseError):
                pass  # the server expires the session by itself
            finally:  # also of a call that is cancelled: another one finds the session closed, and does nothing
                connection.abort(ConnectionLost("the session was closed"))
                self.events.emit(SessionState.EXPIRED)
        else:
            self.events.emit(SessionState.EXPIRED)

    def _fail(self, error: BookKeeperError) -> None:
        self._fatal = error
        self._connection = None
        self._settled.set()
        self.watches.wake_all()  # a watch would otherwise wait for ever

    def _end(self, error: BookKeeperError) -> None:
        """There never will be a connection again: the server ends the session, and with it its nodes."""
        self._fail(error)
        self.events.emit(SessionState.EXPIRED)

    def _die(self, error: BaseException) -> None:
        self._end(MetadataUnavailableError(f"the metadata session ended by a defect: {error!r}", retriable=False))

    # --- calls ------------------------------------------------------------------------------------------------------

    async def call(self, request: Any, *, write: bool) -> Any:
        """Send a request when there is a connection, and return the response or raise `aiozk.exc.ResponseError`.

        A read whose connection ends is sent again on the next one; a write never is. Raises `MetadataUnavailableError`
        at the deadline or when a write's connection ends, with `outcome_unknown` exactly if a write had been sent.
        """
        sent = False
        try:
            async with asyncio.timeout(self.call_timeout_s), self._slots:
                while True:
                    connection = await self._usable_connection()
                    reply = connection.send(request)
                    sent = True
                    try:
                        return await reply
                    except ConnectionLost as lost:
                        if write:
                            raise self._lost_write(lost) from None
                    except _SESSION_ERRORS as error:
                        connection.abort(ConnectionLost(f"the server answered {error}"))
                        if write:
                            raise MetadataUnavailableError("the session ended before the write was done") from None
        except TimeoutError:
            raise MetadataUnavailableError(
                f"the metadata store did not answer within {self.call_timeout_s} s"
                + ("" if self.events.state is SessionState.CONNECTED else f" ({self._last_failure})"),
                outcome_unknown=write and sent,
            ) from None

    def _lost_write(self, lost: ConnectionLost) -> BookKeeperError:
        kind = ClientClosedError if isinstance(self._fatal, ClientClosedError) else MetadataUnavailableError
        return kind(f"the connection to the metadata store was lost during a write: {lost}", outcome_unknown=True)

    async def _usable_connection(self) -> ZooKeeperConnection:
        while True:
            if self._fatal is not None:
                raise to_error(NotDone(self._fatal))  # of this call; the reason itself is shared by all
            connection = self._connection
            # Between a connection's end and this session's noticing it there are ticks of the event loop.
            if connection is not None and connection.usable():
                return connection
            if connection is not None:
                self._suspend(connection)
            await self._settled.wait()

    # --- the connection's life --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._connect()
            except exc.AuthFailed:
                self._end(UnauthorizedError("ZooKeeper refuses the credentials"))
                return
            except _NoServer as error:
                self._end(MetadataUnavailableError(str(error)))
                return
            self._refused_timeout_s = None  # from now on, servers that are away are waited for
            self._first = False
            self._connection = connection
            self._settled.set()
            self.events.emit(SessionState.CONNECTED)
            await self._watch_over(connection)
            self._suspend(connection)

    def _suspend(self, connection: ZooKeeperConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self._settled.clear()
            self._last_zxid = max(self._last_zxid, connection.last_zxid)
            self._last_failure = str(connection.ended.result())
            # Another server first: one that went silent would use up the rest of the session's time.
            self._next_host = (self._next_host + 1) % len(self._hosts)
            self.events.emit(SessionState.SUSPENDED)

    async def _connect(self) -> ZooKeeperConnection:
        """A connection that is ready for use, however long it takes: every server in turn, then again after a pause."""
        delay_s = self._settings.metadata_reconnect_pause_min_s
        failures = 0
        refused_since: float | None = None  # by all servers, one after the other
        while True:
            host, port = self._hosts[self._next_host]
            # Even if all servers but one are silent, that one is reached before the session times out.
            attempt_timeout_s = self.session_timeout_s / (len(self._hosts) + 1)
            try:
                async with asyncio.timeout(attempt_timeout_s):
                    connection = await self._open(host, port)
            except exc.AuthFailed:
                raise  # no other server would say otherwise
            except _OPEN_FAILURES as error:
                wants_tls = isinstance(error, SpeaksTlsError)
                self._last_failure = f"{host}:{port}: {_describe_error(error, secure=self._tls is not None)}"
                self._next_host = (self._next_host + 1) % len(self._hosts)
                failures += 1
                if not (is_refusal(error) or is_tls_error(error) or wants_tls):
                    refused_since = None
                elif refused_since is None:
                    refused_since, failures = self._runtime.clock.monotonic(), 1
            else:
                if connection is not None:
                    return connection
                continue  # the session is gone; this server is well and gives a new one
            if failures % len(self._hosts) == 0:
                if refused_since is not None:
                    self._check_refusals(refused_since, wants_tls=wants_tls)
                await asyncio.sleep(delay_s * (0.5 + self._runtime.rng.random() / 2))
                delay_s = min(2 * delay_s, self._settings.metadata_reconnect_pause_max_s)

    def _check_refusals(self, since: float, *, wants_tls: bool) -> None:
        """Give up if the first connection is refused by everybody for so long that nobody seems to be there.

        What a port speaks doesn't change: for that nobody is waited for.
        """
        if wants_tls:
            raise _NoServer(f"no ZooKeeper server can be used: {self._last_failure}")
        if self._refused_timeout_s is None:
            return
        if self._runtime.clock.monotonic() - since >= self._refused_timeout_s:
            if self._last_failure.endswith(_REFUSED):
                raise _NoServer(f"no ZooKeeper server is running at {self._addresses()}: {_REFUSED}")
            raise _NoServer(f"no ZooKeeper server can be trusted, or trusts this side: {self._last_failure}")

    def _addresses(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in sorted(self._hosts))

    async def _open(self, host: str, port: int) -> ZooKeeperConnection | None:
        """Connect, resume or start the session, authenticate, set the watches. None if the session turned out gone."""
        request = protocol.ConnectRequest(
            protocol_version=0,
            last_seen_zxid=self._last_zxid,  # a server that hasn't seen as much refuses the connection
            timeout=self._asked_timeout_ms,
            session_id=self.session_id,
            password=self._password,
            read_only=False,
        )
        try:
            connection = await ZooKeeperConnection.open(
                host,
                port,
                request,
                tls=self._tls.current() if isinstance(self._tls, Certificates) else self._tls,
                on_event=self.watches.dispatch,
                reply_bytes_max=self._settings.metadata_reply_bytes_max,
            )
        except ConnectionResetError:
            if self._first and self._tls is None and await speaks_tls(host, port):
                raise SpeaksTlsError from None
            raise
        try:
            answer = connection.handshake
            given = answer.session_id != 0 and answer.timeout > 0
            if not given and self.session_id == 0:  # a server in trouble, which must not be asked without a pause
                raise ConnectionLost("the server gave no session")
            if self.session_id not in (0, answer.session_id):
                self._lose_session()
            if not given:
                connection.abort(ConnectionLost("the session has expired"))
                return None
            self.session_id = answer.session_id
            self._password = answer.password
            self.session_timeout_s = answer.timeout / 1000
            self._runtime.spawn(connection.read(), name="zookeeper-read")
            credentials = (protocol.AuthRequest(type=0, scheme=scheme, auth=secret) for scheme, secret in self._auth)
            for first in (*credentials, *self.watches.requests(self._last_zxid)):
                if not connection.usable():
                    raise ConnectionLost("the connection was closed")
                await connection.send(first)
        except BaseException:
            connection.abort(ConnectionLost("the connection did not become ready"))
            raise
        return connection

    def _lose_session(self) -> None:
        self.session_id = 0
        self._password = bytes(16)
        self.events.emit(SessionState.EXPIRED)
        self.watches.wake_all()

    async def _watch_over(self, connection: ZooKeeperConnection) -> None:
        """Return when the connection has ended; end it when the server is silent for two thirds of the timeout."""
        patience_s = self.session_timeout_s / 3
        loop = asyncio.get_running_loop()
        pinged_at: float | None = None
        while True:
            await asyncio.wait([connection.ended], timeout=patience_s / 4)
            # If it was this process that stood still, the answer is in the socket: let it be read first.
            for _ in range(3):
                await asyncio.sleep(0)
            if not connection.usable():
                return
            now = loop.time()
            if pinged_at is not None and connection.last_received_at >= pinged_at:
                pinged_at = None
            if pinged_at is None:
                if now - min(connection.last_sent_at, connection.last_received_at) >= patience_s / 2:
                    connection.ping()
                    pinged_at = connection.last_sent_at
            elif now - pinged_at >= patience_s:
                connection.abort(ConnectionLost(f"the server was silent for {now - connection.last_received_at:.1f} s"))


def _describe_error(error: Exception, *, secure: bool) -> str:
    """Why a server could not be used, for people."""
    if is_refusal(error):
        return _REFUSED
    if is_tls_error(error) or (secure and type(error) is ConnectionResetError and not error.args):
        return explained(error, "the server", None)[1]
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def is_refusal(error: Exception) -> bool:
    """Whether nobody listens at the address, or at any address of a host name."""
    if isinstance(error, ConnectionRefusedError):
        return True
    numbers = {int(number) for number in _ERROR_NUMBER.findall(str(error))} if isinstance(error, OSError) else set()
    return errno.ECONNREFUSED in numbers and numbers <= _NOBODY_THERE
