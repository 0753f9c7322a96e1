"""bkpy: a replicated log store. `connect` is where to begin."""

from importlib.metadata import PackageNotFoundError, version

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
    "QuorumTimeoutError",
    "ReadOnlyBookieError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "WouldBlock",
    "__version__",
    "connect",
]
