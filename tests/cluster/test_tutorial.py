"""The programs of docs/start/tutorial.md do what the page says: killed and started again, they miss nothing."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.waiting import eventually

from bkpy.local import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"


async def test_a_log_survives_its_writer_and_a_bookie(tmp_path: Path) -> None:
    writer, check = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    acknowledged = tmp_path / "acknowledged.txt"
    acknowledged.touch()

    def lines() -> int:
        return len(acknowledged.read_text().splitlines())

    async def twenty_more() -> None:
        seen = lines()
        await eventually(lambda: lines() >= seen + 20, "twenty batches more are acknowledged")

    async with LocalCluster(tmp_path / "cluster", bookies=4) as cluster:
        environment = {**os.environ, "BKPY_CONNECT": cluster.connect_string}
        for kills_a_bookie in (False, True):
            with acknowledged.open("ab") as output:
                running = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", writer, env=environment, stdout=output
                )
            await twenty_more()
            if kills_a_bookie:
                await cluster.bookies[0].kill()
                await twenty_more()
            running.kill()
            await running.wait()
        checking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", check, acknowledged, env=environment, stdout=PIPE
        )
        printed, _ = await checking.communicate()
    assert (checking.returncode, printed) == (0, b"missing: 0\n")
