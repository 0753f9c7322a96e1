"""Connections that never become a client's: how long a bookie waits for the rest of their first frame."""

import asyncio

import pytest
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, hello
from tests.waiting import eventually


@pytest.mark.parametrize("ticks", [0.0, 0.3, 0.6, 0.9])
async def test_who_stops_in_the_first_frame_is_hung_up_on_in_less_than_a_second(
    cluster: InProcess, ticks: float
) -> None:
    """However soon after a tick the half frame comes."""
    await asyncio.sleep(ticks * cluster.service("a").settings.tick_s)
    raw = await Raw.connect(cluster, greet=False)
    whole = hello()
    raw.send(whole[: len(whole) // 2])
    await eventually(lambda: raw.near.mid_frame)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await eventually(lambda: not cluster.connections("a"))
    assert loop.time() - began < 1.0
    raw.writer.close()
