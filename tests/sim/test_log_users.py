"""How a run reads what is left of a log while retention goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bkpy
from tests.unit.client.conftest import cluster
from tests.unit.log.stepwise_log import StepwiseLog, check

from .log_users import read_whole

if TYPE_CHECKING:
    from tests.in_process import InProcess

__all__ = ["cluster"]


@pytest.mark.thorough
async def test_what_is_truncated_under_the_reader_is_left_out_and_what_only_seems_so_is_not(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    for _ in range(4):
        await log.segment(2)
    reader = await client.read_log("orders")
    await log.truncate(6)
    assert reader.first_position == 0
    check(await read_whole(reader), 6, 8)

    class Liar:
        first_position = 6

        def read(self) -> object:
            raise bkpy.TruncatedError("log orders begins at position 6, 0 is gone")

        async def refresh(self) -> None: ...

    with pytest.raises(bkpy.TruncatedError):
        await read_whole(Liar())  # type: ignore[arg-type]
