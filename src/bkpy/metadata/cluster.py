"""A cluster's root: made once by `init_cluster`, found by `open_cluster`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from bkpy.errors import ConfigError, CorruptDataError, NoSuchClusterError
from bkpy.metadata import paths
from bkpy.metadata.layout import LONG_HIERARCHICAL, Layout, layout_named
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.metadata.resolve import create_certainly, ensure_path
from bkpy.metadata.store import Create, MetadataStore, NodeExists, NoNode
from bkpy.protocol.ledger_metadata import UnsupportedVersionError

LAYOUT_VERSION = 1


@dataclass(frozen=True)
class Cluster:
    """An initialised cluster. `instance_id` never changes and is unlike any other cluster's."""

    store: MetadataStore
    root: str
    instance_id: str
    layout_name: str
    catalog: LedgerCatalog


async def init_cluster(store: MetadataStore, root: str, layout: str = LONG_HIERARCHICAL.name) -> Cluster:
    """Make a new cluster under `root`, all at once.

    Raises `ConfigError`, with nothing changed, when there is a cluster already, under `root` or a node above it, or no
    layout of that name.
    """
    chosen = layout_named(layout)
    for above in _above(root):
        if await store.exists(f"{above}/{paths.INSTANCE_ID}"):
            raise ConfigError(
                f"{root} lies inside the tree of the cluster under {above or '/'}, whose nodes are its own to name: "
                "choose another root"
            )
    instance_id = _uuid(store.runtime.rng.randbytes(16))
    await ensure_path(store, root)
    # The instance id comes first: it is unique, so after a lost connection it tells whose cluster this is.
    first = Create(f"{root}/{paths.INSTANCE_ID}", instance_id.encode())
    others = [
        Create(f"{root}/{paths.LAYOUT}", json.dumps({"version": LAYOUT_VERSION, "layout": chosen.name}).encode()),
        *(
            Create(f"{root}/{name}", b"")
            for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES, *chosen.id_nodes)
        ),
    ]
    try:
        await create_certainly(store, first, *others)
    except NodeExists as refusal:
        raise ConfigError(f"there is a cluster already under {root} (it has {refusal.node})") from None
    return _cluster(store, root, instance_id, chosen)


def _above(root: str) -> Iterator[str]:
    """The nodes above `root`, the nearest first; the last one is the tree's own root, ""."""
    while root:
        root = root.rpartition("/")[0]
        yield root


async def open_cluster(store: MetadataStore, root: str) -> Cluster:
    """The cluster under `root`. Raises `NoSuchClusterError` when none was initialised there."""
    try:
        stored, _ = await store.get(f"{root}/{paths.LAYOUT}")
        instance_id, _ = await store.get(f"{root}/{paths.INSTANCE_ID}")
    except NoNode:
        raise NoSuchClusterError(f"there is no cluster under {root}: run `bkpy cluster init` first") from None
    return _cluster(store, root, instance_id.decode(), _layout(stored, root))


def _cluster(store: MetadataStore, root: str, instance_id: str, layout: Layout) -> Cluster:
    return Cluster(store, root, instance_id, layout.name, LedgerCatalog(store, root, layout, store.runtime))


def _layout(stored: bytes, root: str) -> Layout:
    try:
        fields = json.loads(stored)
        version, name = fields["version"], fields["layout"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{root}/{paths.LAYOUT} is unreadable: {error!r}") from error
    if version != LAYOUT_VERSION:
        raise UnsupportedVersionError(
            f"{root}/{paths.LAYOUT} has format version {version}, this bkpy reads {LAYOUT_VERSION}: upgrade it"
        )
    return layout_named(name)


def _uuid(random: bytes) -> str:
    digits = random.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
