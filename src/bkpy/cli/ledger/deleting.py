"""Deleting several ledgers, or logs, for good: in the end it is told what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from bkpy.cli.common import by_reason, confirm, connect, run, say

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
    listed: Callable[[Iterable[T]], str] = lambda names: ", ".join(map(str, names)),
) -> None:
    """Delete one after the other, once that is confirmed. Only one that is `missing` is a reason to go on.

    `listed` is how several are named.
    """
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {listed(wanted)}, for good?")
    deleted: list[T] = []
    failed: dict[T, BookKeeperError] = {}
    try:
        run(_delete(uri, wanted, delete, missing, deleted, failed))
    except BaseException:
        say(f"bkpy: {_summary_line(wanted, deleted, failed, listed)}")
        raise
    if failed:
        raise click.ClickException(_summary_line(wanted, deleted, failed, listed))


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


def _summary_line(
    wanted: Sequence[T],
    deleted: Sequence[T],
    failed: Mapping[T, BookKeeperError],
    listed: Callable[[Iterable[T]], str],
) -> str:
    parts = [f"deleted: {listed(deleted) or 'none'}"]
    if failed:
        reasons = by_reason(failed).items()
        parts.append("not deleted: " + ", ".join(f"{listed(names)} ({reason})" for reason, names in reasons))
    tried = {*deleted, *failed}
    if rest := [name for name in wanted if name not in tried]:
        parts.append(f"not tried, or unknown: {listed(rest)}")
    return "; ".join(parts)
