"""Cookies: the cluster's records of bookies, by which it recognises their directories when they come back.

The value is the bookie's own JSON. Others rely on its presence, its version, three of its fields, and the UUIDs of its
indexes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookieUnavailableError, ConfigError, MetadataConflictError, NoSuchClusterError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import (
    Changed,
    CreateOutcome,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    PutOutcome,
    Superseded,
    Unknown,
    to_error,
)
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_certainly,
    put_certainly,
    read_certainly,
)
from bkpy.metadata.store.store import Create, MetadataStore
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULTS = MetadataSettings()

REQUIRED_FIELDS = ("bookie_id", "address", "instance_id")


async def read_cookie(store: MetadataStore, root: str, bookie_id: str) -> tuple[bytes, int] | None:
    """The bookie's cookie and its version, None if it certainly has none."""
    return await read_certainly(store, paths.cookie(root, bookie_id))


async def write_cookie(
    store: MetadataStore,
    root: str,
    bookie_id: str,
    value: bytes,
    expected_version: int | None,
    *,
    attempts_max: int = DEFAULTS.metadata_write_attempts_max,
    fields_of: Callable[[bytes], dict[str, Any]] | None = None,
) -> int:
    """Write the cookie and return its version. With `expected_version` None there must be none yet.

    `fields_of` reads a cookie of another format than bkpy's.

    Raises `ConfigError` for a value that is no cookie of this bookie, `MetadataConflictError` if somebody else has
    written or deleted it, `NoSuchClusterError`, `MetadataUnavailableError`.
    """
    fields = (fields_of or cookie_fields)(value)
    if fields["bookie_id"] != bookie_id:
        raise ConfigError(f"the cookie is for {fields['bookie_id']!r}", bookie=bookie_id)
    path = paths.cookie(root, bookie_id)
    outcome: CreateOutcome | PutOutcome
    if expected_version is None:
        outcome = await create_certainly(store, Create(path, value), attempts_max=attempts_max)
    else:
        outcome = await put_certainly(store, path, value, expected_version, attempts_max=attempts_max)
    match outcome:
        case Done():
            return outcome.version
        case Exists() | Changed() | Superseded():
            raise MetadataConflictError(
                "somebody else has written the bookie's cookie",
                bookie=bookie_id,
                outcome_unknown=isinstance(outcome, Superseded),
            )
        case Missing():
            if expected_version is None:
                raise NoSuchClusterError(f"there is no cluster under {root}", bookie=bookie_id)
            raise MetadataConflictError("somebody has deleted the bookie's cookie", bookie=bookie_id)
        case NotDone() | Unknown():
            raise to_error(outcome, bookie=bookie_id)
        case _:
            assert_never(outcome)


async def delete_cookie(store: MetadataStore, root: str, bookie_id: str, expected_version: int | None = None) -> None:
    """Delete the bookie's cookie.

    Raises `BookieUnavailableError` if it has no cookie, `MetadataConflictError` if that isn't at `expected_version`,
    `MetadataUnavailableError`.
    """
    # One attempt: the bookie may come back meanwhile, with another cookie.
    outcome = await delete_certainly(store, paths.cookie(root, bookie_id), expected_version, attempts_max=1)
    match outcome:
        case Gone():
            return
        case Missing():
            raise BookieUnavailableError("the cluster knows no such bookie", bookie=bookie_id, retriable=False)
        case Changed() | Superseded():
            raise MetadataConflictError(
                "somebody else has written the bookie's cookie",
                bookie=bookie_id,
                outcome_unknown=isinstance(outcome, Superseded),
            )
        case NotDone() | Unknown():
            raise to_error(outcome, bookie=bookie_id)
        case _:
            assert_never(outcome)


async def list_cookies(store: MetadataStore, root: str) -> list[str]:
    """The ids of all bookies that have a cookie, sorted."""
    return list(await children_if_there(store, f"{root}/{paths.COOKIES}"))


def instance_of(value: bytes) -> str:
    """The name of the bookie's storage: the sorted UUIDs of its indexes, with spaces between; "" if unknown."""
    try:
        return storage_instance([one["index_uuid"] for one in parsed(value)["storage"]["ledger_directories"]])
    except (ValueError, KeyError, TypeError):
        return ""


def storage_instance(index_uuids: Iterable[str]) -> str:
    """The storage with these indexes, as `instance_of` names it."""
    return " ".join(sorted(index_uuids))


def cookie_fields(value: bytes) -> dict[str, Any]:
    """The cookie's fields. Raises `ConfigError` when one that others rely on is missing."""
    try:
        fields = parsed(value)
    except ValueError as error:
        raise ConfigError(f"a cookie is a JSON object: {error}") from error
    missing = [
        name for name in REQUIRED_FIELDS if not isinstance(fields, dict) or not isinstance(fields.get(name), str)
    ]
    if missing:
        raise ConfigError(f"a cookie needs {', '.join(missing)}")
    assert isinstance(fields, dict)
    return fields
