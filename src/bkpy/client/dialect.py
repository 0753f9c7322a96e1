"""What a client does otherwise in another kind of cluster: verifying, connecting, and finding bookies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import ConfigError
from bkpy.metadata.bookies.registration import JSON, RegistrationFormat
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.wire.records import DIGESTS, RecordCodec, digest_key, ledger_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.bookies.channel import NewConnection


class NewFormat(NamedTuple):
    """What a new ledger has of its cluster's kind: the digest's name, the key, and what makes its metadata."""

    digest: str
    key: bytes
    metadata: Callable[..., LedgerMetadata]


class ClientDialect(NamedTuple):
    """`new_format` takes the digest that a caller has named, and the password; it raises `ConfigError`.

    `codec` makes the codec of a ledger, given its metadata and password. `new_connection` is None for bkpy's own.
    """

    new_format: Callable[[str, bytes], NewFormat]
    codec: Callable[[LedgerMetadata, bytes], RecordCodec]
    new_connection: NewConnection | None
    registrations: RegistrationFormat


def record_codec(metadata: LedgerMetadata, password: bytes) -> RecordCodec:
    """The codec of a ledger of bkpy that has this password."""
    return RecordCodec(metadata.ledger_id, metadata.digest, digest_key(password))


def _new_format(digest: str, password: bytes) -> NewFormat:
    if digest not in DIGESTS:
        raise ConfigError(f"digest {digest!r} is not one of {', '.join(DIGESTS)}")
    return NewFormat(digest, ledger_key(password), LedgerMetadata)


NATIVE: Final = ClientDialect(_new_format, record_codec, None, JSON)
