"""A cluster's root node: `init_cluster` creates it once, `open_cluster` finds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from bkpy.config.client import ClientSettings
from bkpy.errors import (
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    NoSuchClusterError,
    UnsupportedVersionError,
)
from bkpy.metadata import paths
from bkpy.metadata.bookkeeper.layout import is_bookkeeper_layout
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL, Layout, layout_named
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import create_certainly, ensure_path, read_certainly
from bkpy.metadata.store.store import Create, MetadataStore
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUT_VERSION = 1
_DEFAULTS = ClientSettings()


@dataclass(frozen=True)
class Cluster:
    """An initialised cluster. `instance_id` is unique and never changes."""

    store: MetadataStore
    root: str
    instance_id: str
    layout_name: str
    catalog: LedgerCatalog
    of_bookkeeper: bool = False
    """Whether it is a cluster of Apache BookKeeper."""


async def init_cluster(
    store: MetadataStore, root: str, layout: str = LONG_HIERARCHICAL.name, *, settings: ClientSettings = _DEFAULTS
) -> Cluster:
    """Create a new cluster under `root`, in one transaction.

    Raises `ConfigError`, with nothing changed, when there is a cluster already, under `root` or a node above it, or no
    layout of that name, and `MetadataUnavailableError`.
    """
    attempts_max = settings.metadata_write_attempts_max
    chosen = layout_named(layout)
    await check_root_above(store, root)
    instance_id = new_instance_id(store)
    above = await ensure_path(store, root, attempts_max=attempts_max)
    if isinstance(above, NotDone):
        raise to_error(above)
    # The instance id comes first: it is unique, so after a lost connection it shows whose cluster this is.
    first = Create(f"{root}/{paths.INSTANCE_ID}", instance_id.encode())
    others = [
        Create(f"{root}/{paths.LAYOUT}", json.dumps({"version": LAYOUT_VERSION, "layout": chosen.name}).encode()),
        *(
            Create(f"{root}/{name}", b"")
            for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES, *chosen.id_nodes)
        ),
    ]
    outcome = await create_certainly(store, first, *others, attempts_max=attempts_max)
    match outcome:
        case Done():
            return _cluster(store, root, instance_id, chosen, settings)
        case Exists():
            raise ConfigError(f"there is a cluster already under {root} (it has {outcome.node})")
        case Missing() | Superseded():
            raise MetadataConflictError(
                f"somebody deletes nodes under {root} at the same time", outcome_unknown=isinstance(outcome, Superseded)
            )
        case NotDone() | Unknown():
            raise to_error(outcome)
        case _:
            assert_never(outcome)


async def check_root_above(store: MetadataStore, root: str) -> None:
    """Raise `ConfigError` if there is a cluster under a node above `root`."""
    for node in _above(root):
        if await store.exists(f"{node}/{paths.INSTANCE_ID}"):
            raise ConfigError(
                f"{root} lies inside the tree of the cluster under {node or '/'}, whose nodes are its own to name: "
                "choose another root"
            )


def new_instance_id(store: MetadataStore) -> str:
    """An instance id that no other cluster has."""
    return _uuid(store.runtime.rng.randbytes(16))


def _above(root: str) -> Iterator[str]:
    """The nodes above `root`, the nearest first; the last one is the tree's own root, ""."""
    while root:
        root = root.rpartition("/")[0]
        yield root


async def open_cluster(
    store: MetadataStore, root: str, *, settings: ClientSettings = _DEFAULTS, of_bookkeeper: bool = False
) -> Cluster:
    """The cluster under `root`; one of Apache BookKeeper only if the caller can use it.

    Raises `NoSuchClusterError` when none was initialised there, and `ConfigError` for one of BookKeeper otherwise.
    """
    layout = await read_certainly(store, f"{root}/{paths.LAYOUT}")
    theirs = layout is not None and is_bookkeeper_layout(layout[0])
    if theirs and not of_bookkeeper:
        raise ConfigError(
            f"the cluster under {root} is one of Apache BookKeeper: administer it with `bookkeeper shell`; "
            "a bookie joins it with --protocol bookkeeper"
        )
    instance_id = await read_certainly(store, f"{root}/{paths.INSTANCE_ID}")
    if theirs and instance_id is None:
        instance_id = b"", 0  # the cluster of an old BookKeeper has none
    if layout is None or instance_id is None:
        raise NoSuchClusterError(f"there is no cluster under {root}: run `bkpy cluster init` first")
    try:
        instance = instance_id[0].decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{root}/{paths.INSTANCE_ID} is unreadable: {error!r}") from error
    if not theirs:
        return _cluster(store, root, instance, _layout(layout[0], root), settings)
    try:
        from bkpy.metadata.bookkeeper.cluster import open_catalog
    except ModuleNotFoundError as error:
        raise ConfigError(f"a cluster of Apache BookKeeper needs {error.name}: install bkpy[bookkeeper]") from error
    catalog = open_catalog(store, root, layout[0], settings)
    return Cluster(store, root, instance, catalog.layout.name, catalog, of_bookkeeper=True)


def _cluster(store: MetadataStore, root: str, instance_id: str, layout: Layout, settings: ClientSettings) -> Cluster:
    return Cluster(store, root, instance_id, layout.name, LedgerCatalog(store, root, layout, store.runtime, settings))


def _layout(stored: bytes, root: str) -> Layout:
    try:
        fields = parsed(stored)
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
