"""bkpy: a replicated log store. `connect` is where to begin.

Names and modules are loaded when they are used. The command line relies on that: Ctrl-C has to end it quietly from its
first moment on, and whatever is imported before its own code runs would answer with a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for which type checkers know the name, and `typing` needn't be loaded
if TYPE_CHECKING:
    from typing import Any

    from bkpy.admin.client import AdminClient
    from bkpy.blocking.calls import (
        BlockingAdminClient,
        BlockingClient,
        BlockingLedgerReader,
        BlockingLedgerWriter,
        BlockingLogConsumer,
        BlockingLogReader,
        BlockingLogWriter,
    )
    from bkpy.blocking.connecting import connect_sync
    from bkpy.client.client import Client
    from bkpy.client.connecting import connect, threadsafe
    from bkpy.client.read.block import Block, Entry
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.errors import (
        BookieUnavailableError,
        BookKeeperError,
        ClientClosedError,
        ClientInfo,
        ConfigError,
        ConsumerLockedError,
        CorruptDataError,
        DigestMismatchError,
        DuplicateEntryError,
        ForgottenProducerError,
        FrameTooLargeError,
        LedgerClosedError,
        LedgerFencedError,
        LedgerRecoveryError,
        LogFencedError,
        LogLockedError,
        MetadataConflictError,
        MetadataUnavailableError,
        NoSuchClusterError,
        NoSuchConsumerError,
        NoSuchEntryError,
        NoSuchLedgerError,
        NoSuchLogError,
        NotEnoughBookiesError,
        ProtocolError,
        QuorumTimeoutError,
        ReadOnlyBookieError,
        SequenceError,
        TlsError,
        TooManyRequestsError,
        TruncatedError,
        UnauthorizedError,
        UnsupportedVersionError,
        WouldBlock,
        WrongEventLoopError,
    )
    from bkpy.log.consumer import ConsumerLag, ConsumerStatus, LogConsumer
    from bkpy.log.entries import LogBlock, LogEntry
    from bkpy.log.reader import LogReader
    from bkpy.log.writer import LogWriter
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_position import LogPosition
    from bkpy.runtime.threadsafe import BlockingIterator, ThreadsafeCalls

    __version__: str

__all__ = [
    "AdminClient",
    "Block",
    "BlockingAdminClient",
    "BlockingClient",
    "BlockingIterator",
    "BlockingLedgerReader",
    "BlockingLedgerWriter",
    "BlockingLogConsumer",
    "BlockingLogReader",
    "BlockingLogWriter",
    "BookKeeperError",
    "BookieUnavailableError",
    "Client",
    "ClientClosedError",
    "ClientInfo",
    "ConfigError",
    "ConsumerLag",
    "ConsumerLockedError",
    "ConsumerStatus",
    "CorruptDataError",
    "DigestMismatchError",
    "DuplicateEntryError",
    "Entry",
    "ForgottenProducerError",
    "FrameTooLargeError",
    "LedgerClosedError",
    "LedgerFencedError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerRecoveryError",
    "LedgerWriter",
    "LogBlock",
    "LogConsumer",
    "LogEntry",
    "LogFencedError",
    "LogLockedError",
    "LogPosition",
    "LogReader",
    "LogWriter",
    "MetadataConflictError",
    "MetadataUnavailableError",
    "NoSuchClusterError",
    "NoSuchConsumerError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NoSuchLogError",
    "NotEnoughBookiesError",
    "ProtocolError",
    "QuorumTimeoutError",
    "ReadOnlyBookieError",
    "SequenceError",
    "ThreadsafeCalls",
    "TlsError",
    "TooManyRequestsError",
    "TruncatedError",
    "UnauthorizedError",
    "UnsupportedVersionError",
    "WouldBlock",
    "WrongEventLoopError",
    "__version__",
    "connect",
    "connect_sync",
    "threadsafe",
]


# Where the names come from that aren't errors.
_MODULES = {
    "AdminClient": "bkpy.admin.client",
    "Block": "bkpy.client.read.block",
    "BlockingAdminClient": "bkpy.blocking.calls",
    "BlockingClient": "bkpy.blocking.calls",
    "BlockingIterator": "bkpy.runtime.threadsafe",
    "BlockingLedgerReader": "bkpy.blocking.calls",
    "BlockingLedgerWriter": "bkpy.blocking.calls",
    "BlockingLogConsumer": "bkpy.blocking.calls",
    "BlockingLogReader": "bkpy.blocking.calls",
    "BlockingLogWriter": "bkpy.blocking.calls",
    "Client": "bkpy.client.client",
    "ConsumerLag": "bkpy.log.consumer",
    "ConsumerStatus": "bkpy.log.consumer",
    "Entry": "bkpy.client.read.block",
    "LedgerMetadata": "bkpy.protocol.ledger.ledger_metadata",
    "LedgerReader": "bkpy.client.read.reader",
    "LedgerWriter": "bkpy.client.write.writer",
    "LogBlock": "bkpy.log.entries",
    "LogConsumer": "bkpy.log.consumer",
    "LogEntry": "bkpy.log.entries",
    "LogPosition": "bkpy.protocol.log.log_position",
    "LogReader": "bkpy.log.reader",
    "LogWriter": "bkpy.log.writer",
    "ThreadsafeCalls": "bkpy.runtime.threadsafe",
    "connect": "bkpy.client.connecting",
    "connect_sync": "bkpy.blocking.connecting",
    "threadsafe": "bkpy.client.connecting",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from bkpy._version import VERSION

        value: Any = VERSION
    elif name in __all__:
        value = getattr(importlib.import_module(_MODULES.get(name, "bkpy.errors")), name)
    else:
        value = None if name.startswith("_") else _submodule(name)
        if value is None:
            raise AttributeError(f"module 'bkpy' has no attribute {name!r}")
    globals()[name] = value
    return value


def _submodule(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"bkpy.{name}")
    except ModuleNotFoundError as e:
        if e.name != f"bkpy.{name}":
            raise
        return None
