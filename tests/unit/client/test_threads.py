"""Appends from another thread are refused before anything is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import contents
from tests.unit.log.support import contents as log_contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.in_process import InProcess

pytestmark = pytest.mark.real("threads")

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


async def nowait(writer: Any) -> Any:
    return await writer.append_nowait(b"foreign")


APPENDS: dict[str, Callable[[Any], Any]] = {
    "append": lambda writer: writer.append(b"foreign"),
    "append_nowait": nowait,
    "append_batch": lambda writer: writer.append_batch([b"foreign"] * 3),
}


@pytest.mark.parametrize("name", APPENDS)
async def test_an_append_in_another_thread_writes_nothing(cluster: InProcess, name: str) -> None:
    client = await cluster.client()
    writer, log = await client.create_ledger(**ONE), await client.open_log("orders", create=True, **ONE)
    for one in (writer, log):

        def elsewhere(one: Any = one) -> None:
            async def run() -> None:
                await APPENDS[name](one)

            asyncio.run(run())

        with pytest.raises(RuntimeError, match="outside the event loop of its client: nothing was written"):
            await asyncio.to_thread(elsewhere)
        assert await one.append(b"own") == 0  # and what is right goes on
        loop = asyncio.get_running_loop()
        thread_safe = asyncio.run_coroutine_threadsafe(one.append(b"by the loop"), loop)
        assert await asyncio.to_thread(thread_safe.result) == 1
        await one.close()
    assert await contents(client, writer.ledger_id) == [b"own", b"by the loop"]
    assert await log_contents(client, "orders") == [b"own", b"by the loop"]
