"""A BookKeeper cluster's root node: its ledgers, and how a new one begins.

Needs the package `protobuf`, which the extra `bkpy[bookkeeper]` installs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.metadata import paths
from bkpy.metadata.bookkeeper.layout import NEW_LAYOUT, BookKeeperIdGenerator, decode_layout
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.store.store import Create
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata

if TYPE_CHECKING:
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.store.store import MetadataStore


def open_catalog(store: MetadataStore, root: str, layout: bytes, settings: ClientSettings) -> LedgerCatalog:
    """The ledgers of the cluster with this LAYOUT. Raises the errors of `decode_layout`."""
    known = decode_layout(layout, f"{root}/{paths.LAYOUT}")
    new_ids = BookKeeperIdGenerator(store, root, known, attempts_max=settings.metadata_write_attempts_max)
    return LedgerCatalog(
        store, root, known, store.runtime, settings, codec=BookKeeperLedgerMetadata, new_ids=new_ids, has_marks=False
    )


def new_cluster_nodes(root: str, instance_id: str) -> list[Create]:
    """The nodes of a new cluster, as `bookkeeper shell initnewcluster` makes them; the unique one first."""
    return [
        Create(f"{root}/{paths.INSTANCE_ID}", instance_id.encode("ascii")),
        Create(f"{root}/{paths.LAYOUT}", NEW_LAYOUT),
        *(Create(f"{root}/{name}", b"") for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES)),
    ]
