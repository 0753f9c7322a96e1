"""The record of the restore that a cluster comes from, and what bookies report before it is confirmed.

Invariants: a cluster has the record before it has anything else, or never; the record goes on from state to state, and
back only when other bookies are given up; `LAYOUT` and `INSTANCEID` come in the transaction that ends WRITING, so
nobody finds half a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError, MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Done, NotDone, Unknown, to_error
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_certainly,
    put_certainly,
    read_certainly,
)
from bkpy.metadata.store.store import Create, Delete
from bkpy.metadata.stored_record import StoredRecord, take
from bkpy.protocol.restore.restoring import BookieReport, Restore, RestoreState, is_confirmed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.metadata.store.outcome import CreateOutcome, PutOutcome
    from bkpy.metadata.store.store import MetadataStore

_RECORD: Final = StoredRecord("the record of the restore", 1)
_REPORT: Final = StoredRecord("a bookie's report to the restore", 1)
_DEFAULTS: Final = MetadataSettings()
_EXAMPLES_MAX: Final = 5


class StoredRestore(NamedTuple):
    """The record, and the version of its node."""

    restore: Restore
    version: int


async def read_restore(store: MetadataStore, root: str) -> StoredRestore | None:
    """The restore that the cluster comes from; None if it certainly was never restored."""
    found = await read_certainly(store, f"{root}/{paths.RESTORE}")
    return None if found is None else StoredRestore(_decode(found[0]), found[1])


async def check_confirmed(store: MetadataStore, root: str, what: str) -> None:
    """Raise `ConfigError` if the cluster was restored and that isn't confirmed: then `what` must not be done."""
    found = await read_restore(store, root)
    if not is_confirmed(None if found is None else found.restore):
        raise ConfigError(
            f"{what} is refused: the cluster's metadata were restored from a backup, which isn't confirmed yet "
            "(`bkpy cluster restore --confirm`)"
        )


async def create_restore(
    store: MetadataStore, root: str, restore: Restore, *, attempts_max: int = _DEFAULTS.metadata_write_attempts_max
) -> CreateOutcome:
    """Make the record, as the first node below the root."""
    return await create_certainly(
        store, Create(f"{root}/{paths.RESTORE}", encode_restore(restore)), attempts_max=attempts_max
    )


async def write_restore(
    store: MetadataStore,
    root: str,
    restore: Restore,
    version: int,
    others: Sequence[Create | Delete] = (),
    *,
    attempts_max: int = _DEFAULTS.metadata_write_attempts_max,
) -> StoredRestore:
    """Replace the record at that version, in one transaction with `others`.

    Raises `MetadataConflictError` if somebody else has, and `MetadataUnavailableError`.
    """
    outcome: PutOutcome = await put_certainly(
        store, f"{root}/{paths.RESTORE}", encode_restore(restore), version, *others, attempts_max=attempts_max
    )
    if isinstance(outcome, Done):
        return StoredRestore(restore, outcome.version)
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome)
    raise MetadataConflictError("somebody else goes on with the restore at the same time: look, and try again")


# --- reports ----------------------------------------------------------------------------------------------------------


async def write_report(
    store: MetadataStore,
    root: str,
    bookie_id: str,
    version: int,
    left: Sequence[int],
    *,
    retried: int = 0,
    asked: Collection[str] = (),
) -> None:
    """Report for a bookie that it misses entries of these ledgers, by a look that began at this version of the record.

    `retried`, `asked`: see `BookieReport`. Raises `MetadataUnavailableError`.
    """
    path = f"{root}/{paths.RESTORE}/{paths.checked_bookie_id(bookie_id)}"
    fields = {"of_version": version, "left": len(left), "examples": list(left[:_EXAMPLES_MAX])}
    value = _REPORT.encode({**fields, "retried": retried, "asked": sorted(asked)} if left else fields)
    found = await read_certainly(store, path)
    attempts_max = _DEFAULTS.metadata_write_attempts_max
    outcome: CreateOutcome | PutOutcome
    if found is None:
        outcome = await create_certainly(store, Create(path, value), attempts_max=attempts_max)
    elif found[0] == value:
        return
    else:
        outcome = await put_certainly(store, path, value, found[1], attempts_max=attempts_max)
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome, bookie=bookie_id)
    # Whatever else: a process of the same bookie was faster, and looks again itself.


async def withdraw_report(store: MetadataStore, root: str, bookie_id: str) -> None:
    """Withdraw what an earlier process of the bookie has reported. Raises `MetadataUnavailableError`."""
    path = f"{root}/{paths.RESTORE}/{paths.checked_bookie_id(bookie_id)}"
    outcome = await delete_certainly(store, path, attempts_max=_DEFAULTS.metadata_write_attempts_max)
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome, bookie=bookie_id)


async def read_reports(store: MetadataStore, root: str, version: int) -> dict[str, BookieReport]:
    """What bookies have reported, by their ids, of looks that began at this version of the record."""
    folder = f"{root}/{paths.RESTORE}"
    reports = {}
    for bookie_id in await children_if_there(store, folder):
        found = await read_certainly(store, f"{folder}/{bookie_id}")
        if found is not None:
            of_version, report = _REPORT.decode(found[0], _report)
            if of_version == version:
                reports[bookie_id] = report
    return reports


def _report(fields: dict[str, Any]) -> tuple[int, BookieReport]:
    asked = fields.pop("asked", None)  # earlier bookies don't report it, nor the number beside it
    return take(fields, "of_version", int), BookieReport(
        take(fields, "left", int),
        tuple(int(one) for one in take(fields, "examples", list)),
        int(fields.pop("retried", 0)),
        None if asked is None else frozenset(str(one) for one in asked),
    )


# --- the stored form --------------------------------------------------------------------------------------------------


def encode_restore(restore: Restore) -> bytes:
    """The value of the record's node."""
    return _RECORD.encode(
        {
            "state": restore.state.value,
            "instance_id": restore.instance_id,
            "former": restore.former,
            "checksum": restore.checksum,
            "kept_from": restore.kept_from,
            "kept_to": restore.kept_to,
            "was_disabled": restore.was_disabled,
            "collects_later": restore.collects_later,
            "given_up": restore.given_up,
            "also_from": restore.also_from,
        }
    )


def _decode(data: bytes) -> Restore:
    def made(fields: dict[str, Any]) -> Restore:
        return Restore(
            RestoreState(take(fields, "state", str)),
            take(fields, "instance_id", str),
            take(fields, "former", str),
            take(fields, "checksum", str),
            take(fields, "kept_from", int),
            take(fields, "kept_to", int),
            take(fields, "was_disabled", bool),
            take(fields, "collects_later", bool),
            tuple(str(one) for one in fields.pop("given_up", ())),  # earlier records have none
            tuple(str(one) for one in fields.pop("also_from", ())),  # nor these
        )

    return _RECORD.decode(data, made)
