"""Requests for ledgers that were deleted from a bookie: who writes to one finds it fenced, and nothing comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.bookie.connection.raw import Raw, add, frame
from tests.unit.storage.support import found_ids

from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.storage.engine import LedgerStorage

LEDGER, KEY = 7, b"k" * 32


async def delete(storage: LedgerStorage) -> None:
    hidden = await hide(storage, LEDGER)
    assert hidden is not None
    assert await hidden.delete()


def present(correlation_id: int = 2) -> bytes:
    return frame(Op.PRESENT, [[LEDGER], [KEY]], correlation_id=correlation_id)


def status(reply: tuple[int, Any]) -> Status:
    """Of an ADD of one batch."""
    head = reply[1]
    return Status(head[0] if isinstance(head, list) else head)


async def asked(raw: Raw, request: bytes, correlation_id: int) -> tuple[int, Any]:
    raw.send(request)
    return await raw.reply(correlation_id)


@pytest.mark.scenario(21)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_writer_that_was_cut_off_for_long_finds_the_ledger_fenced(cluster: InProcess, restarted: bool) -> None:
    raw = await Raw.connect(cluster)
    raw.send(present())
    assert status(await asked(raw, add(LEDGER, 0, correlation_id=3), 3)) == Status.OK
    await delete(cluster.storage("a"))
    assert LEDGER not in raw.near.keys.authorised, "what it was told before counts no longer"
    if restarted:
        await cluster.restart("a")
        raw = await Raw.connect(cluster)
    for correlation_id in (10, 20):
        reply = await asked(raw, add(LEDGER, 1, correlation_id=correlation_id), correlation_id)
        assert status(reply) in (Status.KEY_REQUIRED, Status.FENCED)
        raw.send(present())
        reply = await asked(raw, add(LEDGER, 1, correlation_id=correlation_id + 1), correlation_id + 1)
        assert status(reply) == Status.FENCED
        reply = await asked(raw, frame(Op.FORCE, [LEDGER], correlation_id=correlation_id + 2), correlation_id + 2)
        assert reply[1][0] == Status.FENCED
    assert await cluster.storage("a").held_ledgers(-1, 10) == [], "nothing was made known again"
    raw.close()


async def test_what_recovery_stores_again_is_kept_and_only_that(cluster: InProcess) -> None:
    raw = await Raw.connect(cluster)
    raw.send(present())
    assert status(await asked(raw, add(LEDGER, 0, correlation_id=3), 3)) == Status.OK
    await delete(cluster.storage("a"))
    raw.send(present())
    recovered = add(LEDGER, 5, flags=int(Flags.RECOVERY), correlation_id=4)
    assert status(await asked(raw, recovered, 4)) == Status.OK
    assert status(await asked(raw, add(LEDGER, 6, correlation_id=5), 5)) == Status.FENCED
    storage = cluster.storage("a")
    found = await storage.read(LEDGER, 0, 9, 1 << 20)
    assert (found_ids(found.segments), found.unknown) == ([5], [])
    raw.close()


async def test_a_fence_is_remembered_for_those_who_were_allowed_to_write(cluster: InProcess) -> None:
    cluster.settings["ledger_states_max"] = 1
    await cluster.restart("a")
    raw = await Raw.connect(cluster)
    raw.send(present())
    assert status(await asked(raw, add(LEDGER, 0, correlation_id=3), 3)) == Status.OK
    storage = cluster.storage("a")
    for ledger_id in range(100):
        await storage.fence(ledger_id, KEY)
        await storage.checkpoint()
        await storage.states((1000 + ledger_id,))
    assert len(storage.fenced) < 10
    assert LEDGER in storage.fenced
    assert LEDGER in raw.near.keys.authorised
    assert status(await asked(raw, add(LEDGER, 1, correlation_id=4), 4)) == Status.FENCED
    raw.close()
