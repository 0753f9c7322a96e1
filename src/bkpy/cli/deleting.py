"""Deleting several ledgers, or logs, for good: in the end it is told what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from bkpy.cli.common import confirm, connect, run, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from bkpy.client.client import Client
    from bkpy.errors import BookKeeperError

T = TypeVar("T", int, str)


def delete_all(
    uri: str,
    names: Iterable[T],
    delete: Callable[[Client, T], Awaitable[None]],
    missing: type[BookKeeperError],
    *,
    yes: bool,
) -> None:
    """Delete one after the other, once that is confirmed. Only one that is `missing` is a reason to go on."""
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(map(str, wanted))}, for good?")
    deleted: list[T] = []
    failed: dict[T, BookKeeperError] = {}
    try:
        run(_delete(uri, wanted, delete, missing, deleted, failed))
    except BaseException:
        say(f"bkpy: {_told(wanted, deleted, failed)}")
        raise
    if failed:
        raise click.ClickException(_told(wanted, deleted, failed))


async def _delete(
    uri: str,
    wanted: Sequence[T],
    delete: Callable[[Client, T], Awaitable[None]],
    missing: type[BookKeeperError],
    deleted: list[T],
    failed: dict[T, BookKeeperError],
) -> None:
    """Notes what became of each."""
    from bkpy.errors import BookKeeperError

    async with connect(uri) as client:
        for name in wanted:
            try:
                await delete(client, name)
            except BookKeeperError as e:
                failed[name] = e
                if not isinstance(e, missing):
                    return
            else:
                deleted.append(name)


def _told(wanted: Sequence[T], deleted: Sequence[T], failed: Mapping[T, BookKeeperError]) -> str:
    parts = [f"deleted: {', '.join(map(str, deleted)) or 'none'}"]
    if failed:
        parts.append("not deleted: " + ", ".join(f"{name} ({_reason(error)})" for name, error in failed.items()))
    if rest := [str(name) for name in wanted if name not in deleted and name not in failed]:
        parts.append(f"not tried, or unknown: {', '.join(rest)}")
    return "; ".join(parts)


def _reason(error: BookKeeperError) -> str:
    return error.message + ("; the outcome is unknown" if error.outcome_unknown else "")
