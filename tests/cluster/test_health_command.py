"""`bkpy cluster health` and `check` on real processes: all is well, a bookie is killed, ZooKeeper is away."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import PRELOADED, bkpy, environment, on_terminal
from tests.waiting import eventually

from bkpy.local import LocalCluster

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "metrics_port": 0,
    "session_timeout_s": 4.0,
    "lost_bookie_settle_s": 0.5,
    "disk_free_bytes_min": 0,
}


def run(*words: str, uri: str) -> subprocess.CompletedProcess[bytes]:
    return PRELOADED.run(["cluster", *words], stdin=b"", env=environment(uri), timeout_s=100.0)


async def report(*words: str, uri: str) -> tuple[int, dict[str, Any]]:
    done = await asyncio.to_thread(run, *words, "--json", uri=uri)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr.decode()}


def codes(found: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["subject"] for finding in found["findings"]}


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ((), {"BKPY_CONNECT": ""}, "which cluster?"),
        (("--jsn",), {}, "--json"),
        (("--watch",), {"BKPY_CONNECT": "nowhere"}, "no metadata URI"),
        ((), {"BKPY_READ_TIMEOUT_S": "soon"}, "BKPY_READ_TIMEOUT_S"),
    ],
)
def test_a_look_that_fails_is_no_finding(words: tuple[str, ...], variables: dict[str, str], said: str) -> None:
    assert said in bkpy("cluster", "health", *words, uri="zk://127.0.0.1:1/l", status=3, **variables).stderr.decode()


@pytest.mark.exhaustive
async def test_health_and_check_see_a_killed_bookie_and_a_lost_zookeeper(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, 4, SETTINGS) as cluster:
        uri = cluster.connect_string

        async def well() -> tuple[int, dict[str, Any]]:
            return await report("health", uri=uri)

        # A small disk of the machine that runs this is no failure of the cluster. There is no auditor at first.
        status, found = await eventually(
            well, until=lambda seen: "findings" in seen[1] and set(codes(seen[1])) <= {"space"}, pause_s=0.5
        )
        assert status == (1 if found["findings"] else 0)
        assert (found["bookies"], found["bookies_writable"]) == (4, 4)
        text = run("health", uri=uri).stdout.decode()
        assert text.startswith(f"{found['status']}: 4 bookies, 4 of them take entries")

        status, checked = await report("check", uri=uri)
        assert (status, checked["ok"], checked["not_written"]) == (0, True, {}), checked
        assert {name for one in checked["rounds"] for name in one["bookies"]} == {b.id for b in cluster.bookies}
        assert all(one["deleted_s"] is not None for one in checked["rounds"])
        assert "result" in run("check", uri=uri).stdout.decode()

        async def watched() -> list[tuple[str, bool]]:
            _, seen = await report("top", "--interval", "0.5", uri=uri)
            return [(one["state"], one["seen"]) for one in seen["bookies"]]

        await eventually(watched, until=lambda seen: seen == [("writable", True)] * 4)
        lines = on_terminal(60, "cluster", "top", "--once", uri=uri)
        assert sum("writable" in line for line in lines) == 4, lines

        victim = cluster.bookies[1]
        await victim.kill()

        async def missed() -> tuple[int, dict[str, Any]]:
            return await report("health", uri=uri)

        status, found = await eventually(missed, until=lambda seen: codes(seen[1]).get("absent"), pause_s=0.5)
        assert status == 1
        assert codes(found)["absent"] == victim.id
        status, checked = await report("check", uri=uri)
        assert (status, checked["ok"]) == (0, True), checked
        assert checked["not_written"] == {victim.id: "it isn't registered"}

        await cluster.zookeeper.kill()
        done = await asyncio.to_thread(run, "health", uri=uri)
        assert done.returncode == 3
        assert done.stderr.startswith(b"bkpy: can't tell: ")
        assert done.stderr.count(b"\n") == 1
