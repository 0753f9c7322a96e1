"""Ledger metadata of Apache BookKeeper: what is stored of a ledger in its format versions 1 to 3.

    BookieMetadataFormatVersion<tab><version><newline>     then

    1    lines: write quorum, ensemble size, length; for each fragment its first entry and its bookies, tab-separated;
         at the end `<last entry><tab>CLOSED` of a closed ledger, `-102<tab>CLOSED` of one IN_RECOVERY
    2    LedgerMetadataFormat in protobuf's text format
    3    its size as a varint, and LedgerMetadataFormat in protobuf's binary format

Version 1 has neither digest nor password, nor have old values of version 2: then the client that opens the ledger has
to know both. The password of the others is stored in the clear.

Invariants: a value keeps the format version that was read, and everything in it that no transition changes, also
fields that this version doesn't know. Version 1 is read, never written. No error has a stored password in it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from bkpy.errors import ConfigError, CorruptDataError, UnauthorizedError, UnsupportedVersionError
from bkpy.protocol.bookkeeper.entries import MASTER_KEY_BYTES, DigestType, master_key
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX, Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER: Final = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")
_BINARY: Final = 3
_TEXT: Final = 2
_LINES: Final = 1
_IN_RECOVERY: Final = -102
_I64: Final = range(-(2**63), 2**63)
_TIMES_MS: Final = range(253_402_300_800_000)  # those of the years that dates have
_BOOKIE_ID: Final = re.compile(r"(?!readonly\Z)[A-Za-z0-9:_.\-]{1,255}")

# The digests of a BookKeeper cluster, as bkpy names them. The last one is that of a ledger that doesn't say.
DIGEST_NAMES: Final[Mapping[DigestType, str]] = {
    DigestType.CRC32: "bk-crc32",
    DigestType.HMAC: "bk-hmac-sha1",
    DigestType.CRC32C: "bk-crc32c",
    DigestType.DUMMY: "bk-dummy",
}
DIGEST_TYPES: Final[Mapping[str, DigestType]] = {name: number for number, name in DIGEST_NAMES.items()}
UNKNOWN_DIGEST: Final = "bk-unknown"

# The fields that transitions change. The others are stored again as they were read.
_CHANGING: Final = ("length", "lastEntryId", "state", "segment")
_STATES: Final = {1: LedgerState.OPEN, 2: LedgerState.IN_RECOVERY, 3: LedgerState.CLOSED}
_STATE_NUMBERS: Final = {state: number for number, state in _STATES.items()}

_Message = message_class("LedgerMetadataFormat")


@dataclass(frozen=True, slots=True)
class BookKeeperLedgerMetadata(LedgerMetadata):
    """The metadata of a ledger in a BookKeeper cluster.

    `owner_token` is the decimal number that Java calls cToken, "" if there is none.
    """

    _digests: ClassVar[tuple[str, ...]] = (*DIGEST_NAMES.values(), UNKNOWN_DIGEST)
    _ledger_key_bytes: ClassVar[int] = MASTER_KEY_BYTES

    password: bytes | None = field(default=b"", repr=False)
    """The ledger's password; None if it isn't stored."""
    format_version: int = _BINARY
    """The format that the value was read in, and is written in."""
    kept: bytes = field(default=b"", repr=False, compare=False)
    """What was read and no transition changes, as a message without the other fields; empty for a new ledger."""

    def __post_init__(self) -> None:
        LedgerMetadata.__post_init__(self)
        if self.owner_token and not _is_token(self.owner_token):
            raise ConfigError(f"{self.owner_token!r} is no token of a BookKeeper ledger", ledger_id=self.ledger_id)
        if self.caller_ids or self.deferred_sync or self.accepted_loss is not None:
            raise ConfigError("a BookKeeper ledger can't be of that kind", ledger_id=self.ledger_id)

    def _check_end(self) -> None:
        """A recovery by an old BookKeeper may have closed a ledger before its last fragment."""
        if self.state is not LedgerState.CLOSED:
            LedgerMetadata._check_end(self)
        elif not -1 <= self.last_entry <= ENTRY_ID_MAX:
            raise ConfigError(f"a ledger can't end at entry {self.last_entry}", ledger_id=self.ledger_id)
        elif self.length < 0 or (self.last_entry == -1 and self.length > 0):
            raise ConfigError(
                f"{self.length} bytes up to entry {self.last_entry} is no length", ledger_id=self.ledger_id
            )

    @property
    def known_key(self) -> bytes:
        return b"" if self.password is None else self.ledger_key

    def authorised(self, password: bytes) -> LedgerMetadata:
        """This, with the key of the password; raises `UnauthorizedError` if another password is stored."""
        if self.password is None:
            return dataclasses.replace(self, ledger_key=master_key(password))
        if self.password != password:
            why = "the password is not the ledger's" if password else "the ledger has a password, and none was given"
            raise UnauthorizedError(why, ledger_id=self.ledger_id)
        return self

    def encode(self) -> bytes:
        """The stored value in its format. Raises `ConfigError` for format version 1."""
        header = f"BookieMetadataFormatVersion\t{self.format_version}\n".encode()
        if self.format_version == _LINES:
            raise ConfigError(
                "the ledger's metadata have format version 1, of BookKeeper 4.1 and older, which bkpy only reads",
                ledger_id=self.ledger_id,
            )
        message = self._message()
        if self.format_version == _TEXT:
            text: str = text_format.MessageToString(message, as_utf8=False)
            return header + text.encode("ascii")
        encoded: bytes = message.SerializeToString()
        return header + _varint(len(encoded)) + encoded

    def _message(self) -> Any:
        message = _Message.FromString(b"")
        if self.kept:
            message.MergeFromString(self.kept)
        else:
            message.quorumSize, message.ensembleSize = self.write_quorum, self.ensemble_size
            message.ackQuorumSize = self.ack_quorum
            if self.digest in DIGEST_TYPES:
                message.digestType = DIGEST_TYPES[self.digest]
            if self.password is not None:
                message.password = self.password
            if self.created_ms:
                message.ctime = self.created_ms
            for key, value in self.custom_metadata.items():
                message.customMetadata.add(key=key, value=value)
            if self.owner_token and self.format_version != _TEXT:
                message.cToken = int(self.owner_token)
        message.length, message.lastEntryId = self.length, self.last_entry
        message.state = _STATE_NUMBERS[self.state]
        for fragment in self.fragments:
            segment = message.segment.add()
            segment.MergeFromString(fragment.unknown.get("segment", b""))
            segment.ensembleMember.extend(fragment.bookies)
            segment.firstEntryId = fragment.first_entry
        return message

    @classmethod
    def decode(cls, ledger_id: int, data: bytes) -> BookKeeperLedgerMetadata:
        """The value stored under `ledger_id`.

        Raises `UnsupportedVersionError` for a newer format and `CorruptDataError` for anything that isn't one.
        """
        begin = _HEADER.match(data)
        if begin is None:
            raise CorruptDataError(
                f"the ledger's metadata are not BookKeeper's: they begin with {data[:40]!r}", ledger_id=ledger_id
            )
        version, rest = int(begin[1]), data[begin.end() :]
        if version > _BINARY:
            raise UnsupportedVersionError(
                f"the ledger's metadata have format version {version}, this bkpy reads up to {_BINARY}: upgrade it",
                ledger_id=ledger_id,
            )
        try:
            if version == _LINES:
                return cls._of_lines(ledger_id, rest)
            if version == _TEXT:
                return cls._of_message(ledger_id, version, text_format.Parse(rest, _Message()))
            if version == _BINARY:
                return cls._of_message(ledger_id, version, _Message.FromString(_delimited(rest)))
            raise ValueError(f"{version} is no format version")
        except text_format.ParseError as error:  # whose text has the line, which may be the password's
            where = f"line {error.GetLine()}, column {error.GetColumn()}"
            raise CorruptDataError(f"the ledger's metadata are damaged in {where}", ledger_id=ledger_id) from None
        except UnicodeDecodeError:  # the same
            why = "the ledger's metadata are damaged: not all of them is text"
            raise CorruptDataError(why, ledger_id=ledger_id) from None
        except (ValueError, KeyError, TypeError, IndexError, DecodeError) as error:
            raise CorruptDataError(f"the ledger's metadata are damaged: {error!r}", ledger_id=ledger_id) from error

    @classmethod
    def _of_message(cls, ledger_id: int, version: int, message: Any) -> BookKeeperLedgerMetadata:
        state = _STATES[message.state]
        closed = state is LedgerState.CLOSED
        password = bytes(message.password) if message.HasField("password") else None
        digest = DIGEST_NAMES[message.digestType] if message.HasField("digestType") else UNKNOWN_DIGEST
        fragments = tuple(_fragment(segment) for segment in message.segment)
        end = (message.lastEntryId, message.length) if closed else (-1, 0)
        for name in _CHANGING:
            message.ClearField(name)
        return cls(
            ledger_id=ledger_id,
            state=state,
            ensemble_size=message.ensembleSize,
            write_quorum=message.quorumSize,
            ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
            digest=digest,
            ledger_key=master_key(password or b""),
            fragments=fragments,
            last_entry=end[0],
            length=end[1],
            created_ms=message.ctime if message.ctime in _TIMES_MS else 0,
            owner_token=str(message.cToken) if message.HasField("cToken") else "",
            custom_metadata={_text(entry.key): entry.value for entry in message.customMetadata},
            password=password,
            format_version=version,
            kept=message.SerializePartialToString(),
        )

    @classmethod
    def _of_lines(cls, ledger_id: int, data: bytes) -> BookKeeperLedgerMetadata:
        lines = data.decode("utf-8").splitlines()
        write_quorum, ensemble_size, length = (_number(line) for line in lines[:3])
        state, last_entry, fragments = LedgerState.OPEN, -1, []
        for line in lines[3:]:
            first, *rest = line.split("\t")
            if rest == ["CLOSED"]:
                last_entry = _number(first)
                state = LedgerState.IN_RECOVERY if last_entry == _IN_RECOVERY else LedgerState.CLOSED
                break
            fragments.append(Fragment(_number(first), tuple(map(_bookie_id, rest))))
        closed = state is LedgerState.CLOSED
        return cls(
            ledger_id=ledger_id,
            state=state,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=write_quorum,
            digest=UNKNOWN_DIGEST,
            ledger_key=master_key(b""),
            fragments=tuple(fragments),
            last_entry=last_entry if closed else -1,
            length=length if closed else 0,
            password=None,
            format_version=_LINES,
        )


def _is_token(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,19}", text) is not None and int(text) in _I64


def _number(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        raise ValueError(f"{text!r} is no number")
    return int(text)


def _fragment(segment: Any) -> Fragment:
    first_entry, bookies = segment.firstEntryId, tuple(map(_bookie_id, segment.ensembleMember))
    segment.ClearField("firstEntryId")
    segment.ClearField("ensembleMember")
    unknown = segment.SerializePartialToString()
    return Fragment(first_entry, bookies, {"segment": unknown} if unknown else {})


def _text(key: str | bytes) -> str:
    """A string of protobuf, which may be bytes that are no UTF-8: a custom name must not hide the ledger."""
    return key if isinstance(key, str) else key.decode("utf-8", "replace")


def _bookie_id(text: str) -> str:
    if not _BOOKIE_ID.fullmatch(text):
        raise ValueError(f"{text!r} is no bookie id")
    return text


def _delimited(data: bytes) -> bytes:
    """The message behind its size, which must be all there is."""
    size = at = 0
    for at, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    else:
        raise ValueError("the size of the message is unreadable")
    found = data[at + 1 :]
    if len(found) != size:
        raise ValueError(f"the message has {len(found)} bytes, not {size}")
    return found


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
