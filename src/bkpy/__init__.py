"""bkpy: a replicated log store. `connect` is where to begin."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("bkpy")
except PackageNotFoundError:  # run from a source tree that isn't installed
    __version__ = "0"

from bkpy.client.block import Block, Entry
from bkpy.client.connect import Client, connect
from bkpy.client.reader import LedgerReader
from bkpy.client.writer import LedgerWriter
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    CorruptDataError,
    DigestMismatchError,
    DuplicateEntryError,
    FrameTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchClusterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ProtocolError,
    QuorumTimeoutError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
    WouldBlock,
)
from bkpy.protocol.ledger_metadata import LedgerMetadata

__all__ = [
    "Block",
    "BookKeeperError",
    "BookieUnavailableError",
    "Client",
    "ClientClosedError",
    "ConfigError",
    "CorruptDataError",
    "DigestMismatchError",
    "DuplicateEntryError",
    "Entry",
    "FrameTooLargeError",
    "LedgerClosedError",
    "LedgerFencedError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerRecoveryError",
    "LedgerWriter",
    "MetadataConflictError",
    "MetadataUnavailableError",
    "NoSuchClusterError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotEnoughBookiesError",
    "ProtocolError",
    "QuorumTimeoutError",
    "ReadOnlyBookieError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "WouldBlock",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:
    """`bkpy.local` without an import of its own; it isn't needed to use a cluster, so it isn't loaded for that."""
    if name == "local":
        return importlib.import_module("bkpy.local")
    raise AttributeError(f"module 'bkpy' has no attribute {name!r}")
