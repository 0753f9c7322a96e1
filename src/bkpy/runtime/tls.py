"""Certificates and keys in files, the TLS contexts made of them, and the reasons of failed handshakes.

Invariants: a context is made of files that fit together, or not at all; when the files change, connections that are
there go on, and the next ones get the new context; nothing of a key is ever in a message.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("bkpy.tls")

TlsContext = ssl.SSLContext


class TlsFiles(NamedTuple):
    """Paths of PEM files: the trusted CAs and, unless they are None, the process's own certificate and key."""

    ca: str
    certificate: str | None = None
    key: str | None = None


def _stamps_of(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """A stamp that differs once a file has changed, without reading them. Raises `OSError`."""
    found = (os.stat(path) for path in files if path is not None)
    return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)


def _fill(context: TlsContext, files: TlsFiles) -> None:
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(f"no certificates of a CA can be read: {_plain(e)}", path=files.ca) from None
    if files.certificate is None:
        return
    try:
        context.load_cert_chain(files.certificate, files.key, _refuse_to_ask)
    except _EncryptedKeyError:
        raise ConfigError("the key is encrypted, and nobody is there to give its password", path=files.key) from None
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(
            f"the certificate and its key ({files.key}) can't be read, or don't belong together: {_plain(e)}",
            path=files.certificate,
        ) from None


class _EncryptedKeyError(Exception):
    pass


def _refuse_to_ask() -> NoReturn:
    raise _EncryptedKeyError


class _TellingContext(ssl.SSLContext):
    """Event loops drop what a failed handshake has to say to the peer. With this one, its error carries it."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, _TellingObject)
        made.outgoing = outgoing
        return made


class _UnreadableNamesError(ssl.SSLError):
    pass


class _TellingObject(ssl.SSLObject):
    outgoing: ssl.MemoryBIO

    def getpeercert(self, binary_form: bool = False) -> Any:
        try:
            return super().getpeercert(binary_form)
        except UnicodeDecodeError:  # event loops take it for a defect of theirs, and log it as such, every time
            raise _UnreadableNamesError from None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.last_words = self.outgoing.read()  # type: ignore[attr-defined]
            raise


def last_words(error: Exception) -> bytes:
    """The bytes that tell the peer why the handshake ended with this error on the bookie's side."""
    words: bytes = getattr(error, "last_words", b"")
    return words


class Side(enum.Enum):
    """Which end of a connection a context is for."""

    BOOKIE = enum.auto()  # asks clients for a certificate that one of the CAs has signed
    CLIENT = enum.auto()  # verifies the bookie's certificate, and that it is of the host that was meant
    ZOOKEEPER = enum.auto()  # the same of a ZooKeeper server's


class Certificates:
    """The context of these files. Raises `ConfigError` for unusable files.

    `of_bookkeeper`: the other end may be Java's, which may have nothing newer than TLS 1.2.
    """

    def __init__(self, files: TlsFiles, side: Side, *, of_bookkeeper: bool = False) -> None:
        self.files = files
        self._side = side
        self._oldest = ssl.TLSVersion.TLSv1_3  # where both ends are bkpy's
        if of_bookkeeper or side is Side.ZOOKEEPER:
            self._oldest = ssl.TLSVersion.TLSv1_2
        self._stamps: tuple[tuple[int, int, int], ...] = ()
        self.context = self._load()

    def reload(self) -> bool:
        """Replace the context if a file has changed; whether one has. Keeps the old one if it raises `ConfigError`.

        Of several files that are replaced one after the other, some may not fit yet: the next call tries again.
        """
        try:
            changed = _stamps_of(self.files) != self._stamps
        except OSError as e:
            raise ConfigError(f"a file of the certificates is gone: {_plain(e)}", path=str(e.filename)) from None
        if changed:
            self.context = self._load()
        return changed

    def current(self) -> TlsContext:
        """The context for a client's new connection: that of the files as they are now, if they are usable."""
        try:
            self.reload()
        except ConfigError as e:
            log.warning("%s; the certificates that were read before stay in use", e)
        return self.context

    def following(self, *, looking: bool = False) -> TlsContext:
        """For a server that keeps one context: each of its handshakes uses the `context` of that moment.

        With `looking` each of them looks whether the files have changed, for there is nobody else who calls `reload`.
        """

        def follow(connection: ssl.SSLObject, host: str | None, context: TlsContext) -> None:
            connection.context = self.current() if looking else self.context

        context = self._load()
        context.sni_callback = follow  # called at every handshake, whether the client names a host or not
        return context

    def _load(self) -> TlsContext:
        context: TlsContext
        if self._side is Side.BOOKIE:
            context = _TellingContext(ssl.PROTOCOL_TLS_SERVER)
            context.sslobject_class = _TellingObject
            context.verify_mode = ssl.CERT_REQUIRED
            context.num_tickets = 0  # no client resumes: each presents its certificate again
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # Common names are names of clients: a client with the name of a bookie's host is not that bookie.
            context.hostname_checks_common_name = self._side is Side.ZOOKEEPER
        context.minimum_version = self._oldest
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET  # of TLS 1.2; 1.3 has neither of these
        try:
            stamps = _stamps_of(self.files)
        except OSError as e:
            raise ConfigError(f"a file of the certificates can't be read: {_plain(e)}", path=str(e.filename)) from None
        _fill(context, self.files)
        self._stamps = stamps  # taken before the files were read: a change meanwhile is read again
        return context


def _plain(error: Exception) -> str:
    """The text of OpenSSL or the kernel, without places in source files."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not what PEM files hold").replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


class Failure(enum.Enum):
    """Why a handshake failed, for metrics."""

    PLAIN = "plain"  # the peer speaks no TLS
    NO_CERTIFICATE = "no certificate"
    UNKNOWN_CA = "unknown CA"
    EXPIRED = "expired"
    HOST_NAME = "host name"
    VERSION = "version"
    SLOW = "slow"
    CLOSED = "closed"
    OTHER = "other"


# OpenSSL's numbers of what is wrong with a peer's certificate.
_VERIFY: Mapping[int, tuple[Failure, str]] = {
    9: (Failure.EXPIRED, "{}'s certificate is not valid yet: are the clocks right?"),
    10: (Failure.EXPIRED, "{}'s certificate has expired"),
    62: (Failure.HOST_NAME, "{}'s certificate is of another host"),
    64: (Failure.HOST_NAME, "{}'s certificate is of another host"),
    **dict.fromkeys((2, 18, 19, 20, 21), (Failure.UNKNOWN_CA, "{}'s certificate is signed by none of the CAs in {ca}")),
}

# The peer's alert about the own certificate, and the library's errors about the peer's bytes; `{0}` is the peer.
_REASONS: Mapping[str, tuple[Failure, str]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (Failure.NO_CERTIFICATE, "{} has shown no certificate"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        Failure.NO_CERTIFICATE,
        "{} takes only clients with a certificate: set tls_certificate_file and tls_key_file",
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (Failure.UNKNOWN_CA, "{} trusts no CA that has signed this side's certificate"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (Failure.EXPIRED, "this side's certificate has expired, {} says"),
    "SSLV3_ALERT_BAD_CERTIFICATE": (Failure.OTHER, "{} refuses this side's certificate"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (Failure.OTHER, "{} refuses this side's certificate"),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (Failure.OTHER, "this side's certificate is not made for this, {} says"),
    "TLSV1_ALERT_INTERNAL_ERROR": (
        Failure.OTHER,
        "{} ended the handshake with an internal error: Java says so of a certificate that it doesn't trust",
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": (Failure.VERSION, "{} takes no TLS as old as this side's"),
    "UNSUPPORTED_PROTOCOL": (Failure.VERSION, "{} speaks an older TLS than this side takes"),
    "WRONG_VERSION_NUMBER": (Failure.PLAIN, "{} speaks no TLS"),
    "HTTP_REQUEST": (Failure.PLAIN, "{} speaks no TLS, but HTTP"),
    "HTTPS_PROXY_REQUEST": (Failure.PLAIN, "{} speaks no TLS, but HTTP"),
}


# A peer that closes without an alert may have sent one that the network, or its event loop, has lost.
_GUESSES = {
    "the client": "it may not trust this bookie's certificate, and knows why",
    "the bookie": "it may speak no TLS, and its log knows why",
    "the server": "it may speak no TLS at this port",
}


def explained(error: Exception, peer: str, files: TlsFiles | None) -> tuple[Failure, str]:
    """Why the handshake with `peer`, or the connection right after it, has failed. `peer` is a name in `_GUESSES`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        unknown = (Failure.OTHER, "{}'s certificate is refused: " + error.verify_message)
        failure, text = _VERIFY.get(error.verify_code, unknown)
        if failure is Failure.HOST_NAME:
            text += f" ({error.verify_message})"
        return failure, text.format(peer, ca="its file of CAs" if files is None else files.ca)
    if isinstance(error, _UnreadableNamesError):
        return Failure.OTHER, f"{peer}'s certificate has names that are no text"
    if isinstance(error, ssl.SSLError):
        failure, text = _REASONS.get(error.reason or "", (Failure.OTHER, "TLS with {} failed: " + _plain(error)))
        return failure, text.format(peer)
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return Failure.SLOW, f"{peer} has not finished the TLS handshake in time"
    return Failure.CLOSED, f"{peer} closed the connection during the TLS handshake; {_GUESSES[peer]}"


def examined(context: TlsContext, files: TlsFiles, host: str) -> tuple[float, str]:
    """When the certificate of a bookie's context ends, in seconds since 1970, and what others will have against it.

    Found out by a handshake with itself, as a client that has the same files and means the host. 0 and a reason if that
    fails.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _fill(client, files)
    to_near, to_far = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = client.wrap_bio(to_far, to_near, server_hostname=host)
    near = context.wrap_bio(to_near, to_far, server_side=True)
    try:
        for end in (far, near, far, near):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        return 0.0, explained(error, "this bookie", files)[1]
    certificate = far.getpeercert()
    assert certificate is not None
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"]))), ""


def subject_of(certificate_file: str) -> str:
    """The subject of a certificate, as "CN=alice, O=orders"; "" if that can't be read."""
    try:
        decoded = ssl._ssl._test_decode_cert(certificate_file)  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return ""
    names = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
    return ", ".join(f"{names.get(key, key)}={value}" for part in decoded["subject"] for key, value in part)


def is_tls_error(error: BaseException | None) -> bool:
    """Whether TLS, and not the network below it, has ended a connection."""
    return isinstance(error, ssl.SSLError)
