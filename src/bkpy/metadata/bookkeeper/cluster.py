"""A BookKeeper cluster's root node: its ledgers, and how a new one begins.

Needs the package `protobuf`, which the extra `bkpy[bookkeeper]` installs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import ConfigError
from bkpy.metadata import paths
from bkpy.metadata.bookkeeper.layout import NEW_LAYOUT, BookKeeperIdGenerator, decode_layout
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.store.outcome import Done, NotDone, Unknown, to_error
from bkpy.metadata.store.resolve import create_certainly, ensure_path
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


async def init_bookkeeper_cluster(store: MetadataStore, root: str, instance_id: str, *, attempts_max: int) -> None:
    """Create a new cluster of that id under `root`, in one transaction.

    Raises `ConfigError`, with nothing changed, when there is a cluster already, and `MetadataUnavailableError`.
    """
    above = await ensure_path(store, root, attempts_max=attempts_max)
    if isinstance(above, NotDone):
        raise to_error(above)
    first, *others = new_cluster_nodes(root, instance_id)
    outcome = await create_certainly(store, first, *others, attempts_max=attempts_max)
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome)
    if not isinstance(outcome, Done):
        raise ConfigError(f"there is a cluster already under {root}, or somebody makes one at the same time")


def new_cluster_nodes(root: str, instance_id: str) -> list[Create]:
    """The nodes of a new cluster, as `bookkeeper shell initnewcluster` makes them; the unique one first."""
    return [
        Create(f"{root}/{paths.INSTANCE_ID}", instance_id.encode("ascii")),
        Create(f"{root}/{paths.LAYOUT}", NEW_LAYOUT),
        *(Create(f"{root}/{name}", b"") for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES)),
    ]
