"""What the named logs of one client are made of: parts of the client, and what it does with ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.client.creation import NewLedger
    from bkpy.client.write.interfaces import AppendReceiver, ReplicationParts
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.log.traffic import OpenLogs
    from bkpy.log.turns import WriterTurns
    from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec


class LogParts(NamedTuple):
    """What all logs of one client share.

    `label` names its writers to operators. `create` is `bkpy.client.creation.create_ledger`; `writer` makes the
    writer of such a ledger, which holds what is appended until its owner releases it; `recover` fences a ledger and
    closes it, given its password. `turns` slows down openers that take a log from each other. `open_logs` counts.
    """

    label: str
    logs: LogStore
    catalog: LedgerCatalog
    shared: ReplicationParts
    create: Callable[[NewLedger], Awaitable[Created]]
    writer: Callable[[Created, RecordCodec, AppendReceiver | None], LedgerWriter]
    recover: Callable[[int, bytes], Awaitable[LedgerMetadata]]
    turns: WriterTurns
    open_logs: OpenLogs
