"""Commands about several ledgers or logs: a failure stops no other, and the last line reports what became of each."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bkpy.cli.connecting import connect
from bkpy.cli.input import confirm
from bkpy.cli.output.json import print_json
from bkpy.cli.output.text import say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from bkpy.client.client import Client
    from bkpy.errors import BookKeeperError

T = TypeVar("T")
N = TypeVar("N", int, str)  # a ledger's id or a log's name


def show_each(
    uri: str,
    ledger_ids: Sequence[int],
    act: Callable[[Client, int], Coroutine[Any, Any, T]],
    described: Callable[[T], object],
    show: Callable[[T], None],
    *,
    as_json: bool,
) -> None:
    """Show what `act` returns for each ledger. JSON has an object for one ledger, a list for several.

    Among several, a ledger that fails stops no other, and becomes an error at the end. Results are shown even if the
    command ends early.
    """
    found: dict[int, T] = {}
    failed: dict[int, BookKeeperError] = {}

    def show_found() -> None:
        if as_json:
            results = [described(one) for one in found.values()]
            print_json(results[0] if len(ledger_ids) == 1 else results)
        else:
            for one in found.values():
                show(one)

    try:
        run(_each(uri, ledger_ids, act, found, failed))
    except BaseException:
        if found or failed:
            show_found()
            say(f"bkpy: {_failures(ledger_ids, found, failed)}")
        raise
    show_found()
    if failed:
        raise click.ClickException(_failures(ledger_ids, found, failed))


async def _each(
    uri: str,
    ledger_ids: Sequence[int],
    act: Callable[[Client, int], Coroutine[Any, Any, T]],
    found: dict[int, T],
    failed: dict[int, BookKeeperError],
) -> None:
    """Notes what became of each. Raises the error of a single ledger, and the loss of the metadata store."""
    from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError

    async with connect(uri) as client:
        for ledger_id in ledger_ids:
            try:
                found[ledger_id] = await act(client, ledger_id)
            except BookKeeperError as e:
                if len(ledger_ids) == 1 or isinstance(e, MetadataUnavailableError | ClientClosedError):
                    raise
                failed[ledger_id] = e


def _failures(ledger_ids: Sequence[int], found: Mapping[int, T], failed: Mapping[int, BookKeeperError]) -> str:
    from bkpy.client.arguments import format_ledger_ids

    parts = [
        f"{reason} [ledger{'s' if len(ids) > 1 else ''} {format_ledger_ids(ids)}]"
        for reason, ids in _by_reason(failed).items()
    ]
    if rest := [ledger_id for ledger_id in ledger_ids if ledger_id not in found and ledger_id not in failed]:
        parts.append(f"not tried, or outcome unknown: {format_ledger_ids(rest)}")
    return "; ".join(parts)


def _by_reason(failed: Mapping[T, BookKeeperError]) -> dict[str, list[T]]:
    """The failures by reason: thousands of ledgers that don't exist take one line."""
    reasons: dict[str, list[T]] = {}
    for name, error in failed.items():
        alike = copy.copy(error)
        alike.ledger_id = None
        reasons.setdefault(str(alike), []).append(name)
    return reasons


# --- deleting ---------------------------------------------------------------------------------------------------------


def delete_all(
    uri: str,
    names: Iterable[N],
    delete: Callable[[Client, N], Awaitable[None]],
    missing: type[BookKeeperError],
    *,
    yes: bool,
    listed: Callable[[Iterable[N]], str] = lambda names: ", ".join(map(str, names)),
) -> None:
    """Ask, then delete one after the other. Of all errors, only `missing` doesn't stop the rest.

    `listed` makes a text of several names.
    """
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {listed(wanted)}, for good?")
    deleted: list[N] = []
    failed: dict[N, BookKeeperError] = {}
    try:
        run(_delete_each(uri, wanted, delete, missing, deleted, failed))
    except BaseException:
        say(f"bkpy: {_what_was_deleted(wanted, deleted, failed, listed)}")
        raise
    if failed:
        raise click.ClickException(_what_was_deleted(wanted, deleted, failed, listed))


async def _delete_each(
    uri: str,
    wanted: Sequence[N],
    delete: Callable[[Client, N], Awaitable[None]],
    missing: type[BookKeeperError],
    deleted: list[N],
    failed: dict[N, BookKeeperError],
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


def _what_was_deleted(
    wanted: Sequence[N],
    deleted: Sequence[N],
    failed: Mapping[N, BookKeeperError],
    listed: Callable[[Iterable[N]], str],
) -> str:
    parts = [f"deleted: {listed(deleted) or 'none'}"]
    if failed:
        reasons = _by_reason(failed).items()
        parts.append("not deleted: " + ", ".join(f"{listed(names)} ({reason})" for reason, names in reasons))
    tried = {*deleted, *failed}
    if rest := [name for name in wanted if name not in tried]:
        parts.append(f"not tried, or outcome unknown: {listed(rest)}")
    return "; ".join(parts)
