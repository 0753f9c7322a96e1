"""What a client does otherwise in another kind of cluster: verifying, connecting, and finding bookies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.metadata.bookies.registration import JSON, RegistrationFormat
from bkpy.protocol.wire.records import RecordCodec, digest_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.bookies.channel import NewConnection
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class ClientDialect(NamedTuple):
    """`codec` makes the codec of a ledger, given its metadata and password; `new_connection` is None for bkpy's own."""

    codec: Callable[[LedgerMetadata, bytes], RecordCodec]
    new_connection: NewConnection | None
    registrations: RegistrationFormat


def record_codec(metadata: LedgerMetadata, password: bytes) -> RecordCodec:
    """The codec of a ledger of bkpy that has this password."""
    return RecordCodec(metadata.ledger_id, metadata.digest, digest_key(password))


NATIVE: Final = ClientDialect(record_codec, None, JSON)
