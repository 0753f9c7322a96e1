"""Signals that end `bkpy local` as it starts."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from bkpy.cli.local import serve
from bkpy.cli.running import run


class Starting:
    """A cluster that gets a signal as it starts."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def start(self) -> None:
        os.kill(os.getpid(), self.number)
        await asyncio.Event().wait()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_status_says_which_signal_ended_the_start(number: int, status: int) -> None:
    cluster: Any = Starting(number)
    assert run(serve(cluster, restart=True, dashboard=False, as_json=False)) == status
