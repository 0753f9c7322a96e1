"""Every bound of a client at the smallest value that it takes: slow perhaps, and never stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from annotated_types import Gt
from tests.in_process import DEADLINE_S, InProcess, contents

from bkpy.config.client import ClientSettings, client_settings
from bkpy.errors import ConfigError

ENTRY_BYTES = 100
# How much these allow is what the operations below need, and not how they get it done.
NEEDED = {"entry_bytes_max": ENTRY_BYTES, "ensemble_changes_max": 10, "reply_bytes_max": ENTRY_BYTES + (64 << 10)}

SMALLEST = {
    name: NEEDED.get(name, 1)
    for name, field in ClientSettings.model_fields.items()
    if field.annotation is int and any(isinstance(bound, Gt) for bound in field.metadata)
}

OFTEN = {"reply_bytes_max"}  # in `make test`, which has all of them at once


async def work(cluster: InProcess, **settings: Any) -> None:
    """Write, follow, lose a bookie, read, recover: with striped ledgers and others."""
    client = await cluster.client(**settings)
    for sizes in ((3, 3, 2), (3, 2, 2)):
        ledger = dict(zip(("ensemble_size", "write_quorum", "ack_quorum"), sizes, strict=True))
        writer = await client.create_ledger(**ledger)
        left = await client.create_ledger(**ledger)
        reader = await client.open_ledger(writer.ledger_id)
        followed: list[bytes] = []

        async def follow(reader: Any, followed: list[bytes]) -> None:
            followed += [entry.data async for entry in reader.tail()]

        following = asyncio.create_task(follow(reader, followed))
        entries = [b"%d" % i * (ENTRY_BYTES // 4) for i in range(10)]
        await asyncio.gather(*map(writer.append, entries[:4]))
        await asyncio.gather(*(left.append(entry) for entry in entries[:4]))
        for connection in cluster.connections(writer.ensemble[0]):
            connection.abort()
        await asyncio.gather(*map(writer.append, entries[4:8]), left.append_batch(entries[4:]))
        await writer.append_batch(entries[8:])
        left.abandon()
        await client.recover_ledger(left.ledger_id)
        await writer.close()
        await following
        assert followed == await contents(client, writer.ledger_id) == entries
        assert await contents(client, left.ledger_id) == entries


async def test_all_bounds_at_their_smallest(four: InProcess) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await work(four, **{"read_bytes": ENTRY_BYTES, **SMALLEST})


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(SMALLEST)]
)
async def test_one_bound_at_its_smallest(four: InProcess, name: str) -> None:
    small = {"entry_bytes_max": ENTRY_BYTES, "read_bytes": ENTRY_BYTES} if name == "reply_bytes_max" else {}
    async with asyncio.timeout(DEADLINE_S):
        await work(four, **small, **{name: SMALLEST[name]})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reply_bytes_max": 1 << 20}, ["reply_bytes_max", "entry_bytes_max", "64 KiB"]),
        ({"reconnect_pause_min_s": 2.0}, ["reconnect_pause_max_s", "reconnect_pause_min_s"]),
        ({"ensemble_retry_backoff_max_s": 0.01}, ["ensemble_retry_backoff_max_s", "ensemble_retry_backoff_min_s"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        client_settings(**settings)
    assert all(word in str(caught.value) for word in words)
