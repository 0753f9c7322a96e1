"""Three real bookies, one of them killed: logs go on, and are whole when it is back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from tests.command import as_json, bkpy
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy as library
from bkpy.client.client import log_parts
from bkpy.errors import NotEnoughBookiesError
from bkpy.local import LocalCluster
from bkpy.metadata.replication.underreplication import LossReason

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.log.writer import LogWriter

WHOLE_S = 60.0
PAUSE_S = 0.2  # a reading of all records leaves the processor to what it waits for


async def append(log: LogWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        await log.append(b"%d" % number)


async def ledgers_of(client: Client, name: str) -> list[int]:
    return [s.ledger_id for s in (await log_parts(client).logs.read(name, fresh=True))[0].segments]


async def read(client: Client, name: str) -> list[bytes]:
    reader = await client.read_log(name)
    return [entry.data async for entry in reader.read()]


async def whole_at_last(client: Client, ledger_ids: list[int]) -> None:
    """Return when no record is left of these ledgers, and each bookie has all that they name it for."""

    admin = library.AdminClient(client)

    async def unmarked() -> bool:
        return [await admin.under_replication(i) for i in ledger_ids] == [None] * len(ledger_ids)

    await eventually(unmarked, deadline_s=WHOLE_S, pause_s=PAUSE_S)
    for ledger_id in ledger_ids:
        await whole(client, ledger_id)


@pytest.mark.exhaustive
@pytest.mark.scenario(66)
async def test_logs_are_opened_rolled_and_taken_over_while_one_of_three_bookies_is_down(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, 3, {"session_timeout_s": 4.0}) as cluster, AsyncExitStack() as stack:
        uri = cluster.connect_string
        first, second, other = [await stack.enter_async_context(library.connect(uri)) for _ in range(3)]
        victim = cluster.bookies[2]
        await victim.kill()  # SIGKILL: its registration stays for a while

        log = await first.open_log("orders", create=True, roll_entries=20)
        await append(log, 0, 30)
        late = await second.open_log("orders", roll_entries=20)  # takes it over
        await append(late, 30, 30)
        await eventually(lambda: read(other, "orders"), until=lambda found: len(found) == 60)
        assert await read(other, "orders") == [b"%d" % i for i in range(60)]
        with pytest.raises(library.LogFencedError):
            await log.append(b"never")
        await eventually(lambda: victim.id not in other.bookies)
        with pytest.raises(NotEnoughBookiesError, match="2 are available"):
            await other.create_ledger(allow_absent_bookies=False)

        # A takeover deletes what a roll has left empty, so that of the first writer's two ledgers one may be there.
        ledgers = await eventually(lambda: ledgers_of(other, "orders"), until=lambda found: len(found) >= 3)
        for ledger_id in ledgers:
            metadata = await other.ledger_metadata(ledger_id)
            assert victim.id in metadata.fragments[0].bookies
            shown = await asyncio.to_thread(as_json, "ledger", "show", str(ledger_id), uri=uri)
            # A writer that still saw it registered has tried it in vain, and says so of the ledger that it closed.
            assert shown["under_replicated"][victim.id]["reason"] in {LossReason.ABSENT, LossReason.RETURNED}
        explained = await asyncio.to_thread(bkpy, "ledger", "explain", str(ledgers[-1]), uri=uri)
        assert f"{victim.id} (away, marked: absent-at-creation)" in explained.stdout.decode()
        text = (await asyncio.to_thread(bkpy, "ledger", "show", str(ledgers[-1]), uri=uri)).stdout.decode()
        assert "absent-at-creation since" in text

        await append(late, 60, 5)  # a ledger without entries would need no new fragment
        await victim.start()
        await whole_at_last(other, ledgers[:-1])
        present = ledgers[-1]  # has an end no sooner than its writer has taken in the bookie
        await append(late, 65, 5)

        async def taken_in() -> bool:
            return len((await other.ledger_metadata(present)).fragments) == 2

        await eventually(taken_in)
        await late.close()
        await whole_at_last(other, await ledgers_of(other, "orders"))
        assert await read(other, "orders") == [b"%d" % i for i in range(70)]
