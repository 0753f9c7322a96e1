"""Completes ids and names from the cluster that BKPY_CONNECT or `--connect` names.

Invariant: completion takes a second at most, reads a bounded part of a cluster, and never writes anything: without a
cluster there is nothing to complete.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import click

    from bkpy.admin.client import AdminClient

TIMEOUT_S: Final = 1.0
SHOWN_MAX: Final = 100


def _complete(ctx: click.Context, find: Callable[[AdminClient], Awaitable[list[str]]]) -> list[str]:
    uri = ctx.params.get("uri") or os.environ.get("BKPY_CONNECT")
    if not uri:
        return []

    async def found() -> list[str]:
        from bkpy.cli.connecting import connect_admin  # with the settings that commands have

        async with asyncio.timeout(TIMEOUT_S), connect_admin(uri) as admin:
            return await find(admin)

    import logging

    logging.disable()  # whose lines would come between what the user types
    try:
        return asyncio.run(found())
    except Exception:  # whatever it is, the shell goes on
        return []
    finally:
        logging.disable(logging.NOTSET)


async def _some(names: AsyncIterator[str], begin: str) -> list[str]:
    found: list[str] = []
    async for name in names:
        if name.startswith(begin):
            found.append(name)
            if len(found) == SHOWN_MAX:
                break
    return found


def complete_log(ctx: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """Names of logs that begin so."""
    return _complete(ctx, lambda admin: _some(admin.client.list_logs(), begin))


def complete_bookie(ctx: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """Ids of registered bookies that begin so."""

    async def bookies(admin: AdminClient) -> list[str]:
        return sorted(name for name in admin.registered_bookies if name.startswith(begin))[:SHOWN_MAX]

    return _complete(ctx, bookies)


def complete_ledger(ctx: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """Ids of ledgers that begin so; of a list, as 7,9-12, its last one."""
    last = re.split("[,-]", begin)[-1]
    head = begin.removesuffix(last)
    if last and (not last.isdecimal() or not last.isascii()):
        return []

    async def ids(admin: AdminClient) -> list[str]:
        from bkpy.client.client import replication_context

        catalog = replication_context(admin.client).cluster.catalog
        found: list[int] = []
        for first, end in _ranges(last):  # only the nodes of these are listed
            async for partition in catalog.partitions(first, end):
                found += [ledger_id for ledger_id in partition if first <= ledger_id <= end]
                if len(found) >= SHOWN_MAX:
                    return [f"{head}{ledger_id}" for ledger_id in found[:SHOWN_MAX]]
        return [f"{head}{ledger_id}" for ledger_id in found]

    return _complete(ctx, ids)


def _ranges(digits: str) -> list[tuple[int, int]]:
    """The ids whose digits begin so, from the shortest on."""
    from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX

    if not digits:
        return [(0, LEDGER_ID_MAX)]
    number, longer = int(digits), len(str(LEDGER_ID_MAX)) - len(digits)
    spans = ((number * 10**more, (number + 1) * 10**more - 1) for more in range(1 if number == 0 else longer + 1))
    return [(first, min(end, LEDGER_ID_MAX)) for first, end in spans if first <= LEDGER_ID_MAX]
