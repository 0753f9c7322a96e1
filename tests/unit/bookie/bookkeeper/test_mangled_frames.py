"""Frames that were mangled on their way: the bookie answers or hangs up, and nothing else goes wrong."""

from __future__ import annotations

import logging
import random
import struct
from typing import TYPE_CHECKING

import pytest
from tests.golden.bookkeeper import reading
from tests.unit.bookie.bookkeeper.raw import RawBookKeeper, entry
from tests.waiting import eventually

from bkpy.protocol.bookkeeper.statuses import StatusCode

if TYPE_CHECKING:
    from tests.in_process import InProcess

FRAMES = [frame for name, frame in reading.read("wire.txt").items() if name.startswith(("v2 ", "v3 "))]


def mangled(rng: random.Random) -> bytes:
    """A frame with some bytes changed, cut off or inserted; its length is right."""
    body = bytearray(rng.choice(FRAMES)[4:])
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(body) + 1)
        act = rng.randrange(4)
        if act == 0 and at < len(body):
            body[at] ^= 1 << rng.randrange(8)
        elif act == 1:
            del body[at:]
        elif act == 2:
            body[at:at] = rng.randbytes(rng.choice((1, 8)))
        elif at < len(body):
            body[at] = rng.choice((0x00, 0x7F, 0x80, 0xFF))
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 2000), marks=pytest.mark.exhaustive)], ids=["some", "many"]
)
async def test_whatever_is_mangled_is_answered_or_ends_the_connection(
    cluster: InProcess, caplog: pytest.LogCaptureFixture, seeds: range
) -> None:
    caplog.set_level(logging.ERROR)
    cluster.settings.update(gc_interval_s=0, long_poll_max_s=0.5)
    await cluster.restart("a")
    well = await RawBookKeeper.connect(cluster)
    for seed in seeds:
        rng = random.Random(seed)
        raw = await RawBookKeeper.connect(cluster)
        near = raw.near
        frames = [mangled(rng) for _ in range(rng.randrange(1, 8))]
        raw.send(frames)  # type: ignore[arg-type]
        await eventually(lambda near=near, frames=frames: near.lost or near.received_bytes == len(b"".join(frames)))  # type: ignore[misc]
        await eventually(lambda near=near: near.lost or not near.busy)  # type: ignore[misc]
        raw.close()
        await eventually(lambda near=near: near.lost)  # type: ignore[misc]
        assert await well.add(seed, entry(seed)) == StatusCode.EOK, f"after seed {seed}"
    assert (await well.read(seeds[0])).entry == entry(seeds[0])
    assert [record for record in caplog.records if record.exc_info] == []
    assert cluster.service("a").receive_budget.used == 0
    well.close()
    await cluster.restart("a")
