"""What a client does otherwise in a BookKeeper cluster. Needs the extra `bkpy[bookkeeper]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bkpy.client.bookkeeper.connection import TranslatingConnection
from bkpy.client.bookkeeper.ledgers import UsedLedgers, digest_named
from bkpy.client.dialect import ClientDialect, NewFormat
from bkpy.metadata.bookkeeper.service_info import SERVICE_INFO
from bkpy.protocol.bookkeeper.entries import master_key
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata

if TYPE_CHECKING:
    from bkpy.client.bookies.connection import ChannelOwner
    from bkpy.config.client import ClientSettings
    from bkpy.runtime.interfaces import Runtime


# Entries of one range of a scan or recovery, each a request of its own there: a range has the time of one request.
RANGE_ENTRIES_MAX: Final = 1000

_TOKEN_BYTES: Final = 8  # of what is unique to the creation of a ledger


def with_short_ranges(settings: ClientSettings) -> ClientSettings:
    """The settings, with as many entries in a range as a bookie of BookKeeper's answers in good time."""
    bounds = {
        "read_entries_max": min(settings.read_entries_max, RANGE_ENTRIES_MAX),
        "recovery_range_entries_max": min(settings.recovery_range_entries_max, RANGE_ENTRIES_MAX),
    }
    return settings.model_copy(update=bounds)


def bookkeeper_dialect(settings: ClientSettings, runtime: Runtime) -> ClientDialect:
    """Of one client."""
    ledgers = UsedLedgers()

    def connection(owner: ChannelOwner) -> TranslatingConnection:
        return TranslatingConnection(owner, ledgers, settings, runtime)

    return ClientDialect(_new_format, ledgers.codec, connection, SERVICE_INFO)


def _new_format(digest: str, password: bytes) -> NewFormat:
    def metadata(*, owner_token: str, **fields: Any) -> BookKeeperLedgerMetadata:
        token = int.from_bytes(bytes.fromhex(owner_token)[:_TOKEN_BYTES], "big", signed=True)
        return BookKeeperLedgerMetadata(owner_token=str(token), password=password, **fields)

    return NewFormat(digest_named(digest), master_key(password), metadata)
