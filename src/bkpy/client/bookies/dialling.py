"""Connects a client to bookies, plain or with TLS, and turns failures to connect into errors."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from bkpy.config.address import split_address
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ProtocolError,
    TlsError,
    UnauthorizedError,
)
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Status
from bkpy.runtime.process import descriptors_max
from bkpy.runtime.tls import Certificates, Side, TlsContext, TlsFiles, explained, is_tls_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.client import ClientSettings


class ClosedMeanwhileError(ClientClosedError, BookieUnavailableError):
    """The client was closed while a bookie was asked; a call that asks others next goes on as if this one were away."""

    retriable = False


class Dialler:
    """Connects to bookies, with TLS if `given` is a context or the settings name files for one. `ConfigError`.

    `of_bookkeeper`: the bookies may be Java's.
    """

    def __init__(
        self, settings: ClientSettings, given: TlsContext | None = None, *, of_bookkeeper: bool = False
    ) -> None:
        self._given = given
        self._certificates: Certificates | None = None
        if given is None and settings.tls_ca_file is not None:
            files = TlsFiles(settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
            self._certificates = Certificates(files, Side.CLIENT, of_bookkeeper=of_bookkeeper)

    async def dial(self, protocol: Callable[[], asyncio.BaseProtocol], address: str) -> None:
        """Connect to "host:port". Raises errors that `not_reached` translates. The caller sets a timeout."""
        host, port = split_address(address)
        loop, context = asyncio.get_running_loop(), self._context()
        if context is None:
            await loop.create_connection(protocol, host, port)
        else:
            await loop.create_connection(protocol, host, port, ssl=context, server_hostname=host)

    async def dial_in_clear(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: str
    ) -> tuple[str, TlsContext | None]:
        """Connect to "host:port" without TLS; the host, and the context with which the caller begins TLS, if any."""
        host, port = split_address(address)
        context = self._context()
        await asyncio.get_running_loop().create_connection(protocol, host, port)
        return host, context

    def _context(self) -> TlsContext | None:
        return self._given if self._certificates is None else self._certificates.current()

    def not_reached(self, error: OSError | ValueError, bookie_id: str) -> BookKeeperError:
        """The error for a failure to connect."""
        secure = self._given is not None or self._certificates is not None
        if is_tls_error(error) or (secure and isinstance(error, ConnectionResetError)):
            return self._tls_error(error, bookie_id)
        out_of_files = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        reason = f"this process is out of file descriptors (limit {descriptors_max()})" if out_of_files else error
        return BookieUnavailableError(f"can't connect: {reason}", bookie=bookie_id)

    def lost(self, error: Exception | None, bookie_id: str) -> BookKeeperError:
        """The error for a lost connection. With TLS, a bookie refuses a certificate only after the handshake."""
        if isinstance(error, TlsError | UnauthorizedError):
            return type(error)(error.message, bookie=bookie_id)
        if error is not None and is_tls_error(error):
            return self._tls_error(error, bookie_id)
        reason = error.message if isinstance(error, BookKeeperError) else error or "closed"
        return BookieUnavailableError(f"the connection was lost: {reason}", bookie=bookie_id)

    def _tls_error(self, error: Exception, bookie_id: str) -> TlsError:
        files = None if self._certificates is None else self._certificates.files
        return TlsError(explained(error, "the bookie", files)[1], bookie=bookie_id)


def not_welcome(status: int, message: str, bookie_id: str) -> BookKeeperError:
    """The error for a bookie's refusal of HELLO."""
    if status == Status.FORBIDDEN:
        return UnauthorizedError(message, bookie=bookie_id)
    return BookieUnavailableError(f"refused the connection: {message}", bookie=bookie_id)


def hung_up(status: int, message: str, bookie_id: str) -> BookKeeperError:
    """The error for a reply with which a bookie closes the connection."""
    if status in (Status.TLS_REQUIRED, Status.FORBIDDEN):
        return m.error_of(Status(status), message, bookie=bookie_id)
    return ProtocolError(f"the bookie refused the connection: {message}", bookie=bookie_id)


def tells_why_away(error: BookKeeperError) -> bool:
    """Whether the error says why there is no connection."""
    return isinstance(error, BookieUnavailableError | UnauthorizedError)


def copy_of(error: BookKeeperError, bookie_id: str) -> BookKeeperError:
    """A copy for one of several waiters, so that tracebacks don't pile up."""
    kind = type(error) if tells_why_away(error) else BookieUnavailableError
    return kind(error.message, bookie=bookie_id)
