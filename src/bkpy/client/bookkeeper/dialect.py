"""What a client does otherwise in a BookKeeper cluster. Needs the extra `bkpy[bookkeeper]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.bookkeeper.connection import TranslatingConnection
from bkpy.client.bookkeeper.ledgers import UsedLedgers
from bkpy.client.dialect import ClientDialect
from bkpy.metadata.bookkeeper.service_info import SERVICE_INFO

if TYPE_CHECKING:
    from bkpy.client.bookies.connection import ChannelOwner
    from bkpy.config.client import ClientSettings
    from bkpy.runtime.interfaces import Runtime


def bookkeeper_dialect(settings: ClientSettings, runtime: Runtime) -> ClientDialect:
    """Of one client."""
    ledgers = UsedLedgers()

    def connection(owner: ChannelOwner) -> TranslatingConnection:
        return TranslatingConnection(owner, ledgers, settings, runtime)

    return ClientDialect(ledgers.codec, connection, SERVICE_INFO)
