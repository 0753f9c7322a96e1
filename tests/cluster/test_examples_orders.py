"""The programs of examples/orders do what its README says."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.orders import Program
from tests.waiting import eventually_here

import bkpy
from bkpy.local.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.local import LocalCluster

README = (Path(__file__).parents[2] / "examples" / "orders" / "README.md").read_text(encoding="utf-8")
SESSION = re.compile(r"^    \$ (curl .*)\n    (.*)$", re.MULTILINE)


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str, object], Program]]:
    """Starts programs of the example, which end with the test."""
    started: list[Program] = []

    def begin(name: str, argument: object) -> Program:
        started.append(Program(tmp_path, cluster.connect_string, name, argument))
        started[-1].start()
        return started[-1]

    yield begin
    for program in started:
        if program.process.pid is not None:
            os.kill(program.process.pid, signal.SIGKILL)


def curl(command: str) -> str:
    """What the command prints, which these tests don't need to be installed."""
    found = re.fullmatch(r"curl -s (?:-X PUT -d (\w+) )?(\S+)", command)
    assert found is not None, command
    data = None if found[1] is None else found[1].encode("latin-1")
    request = urllib.request.Request(f"http://{found[2]}", data, method="GET" if data is None else "PUT")

    def answer() -> str:
        try:
            with urllib.request.urlopen(request, timeout=60) as answered:
                return str(answered.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except urllib.error.URLError:  # the service is starting
            return ""

    return eventually_here(answer, f"{command} is answered")


def test_the_session_of_the_readme(
    cluster: LocalCluster, start: Callable[[str, object], Program], tmp_path: Path
) -> None:
    ports = {"8001": free_port(), "8002": free_port()}
    for port in ports.values():
        start("service", port)
    shipped = tmp_path / "shipped"
    consumer = start("consumer", shipped)
    eventually_here(lambda: "no service has begun" in consumer.process.log_tail(), "the consumer waits")
    commands = SESSION.findall(README)
    assert len(commands) == README.count("$ curl") > 4
    orders = f"localhost:{ports['8001']}/orders"
    for command, answer in commands:
        found = curl(re.sub("800[12]", lambda match: str(ports[match[0]]), command))
        assert json.loads(found) == json.loads(answer), command
    assert "so the next one is 3, not 9" in curl(f"curl -s -X PUT -d gap {orders}/9")

    eventually_here(lambda: shipped.exists() and shipped.read_text().count("\n") == 3)
    assert consumer.process.pid is not None
    os.kill(consumer.process.pid, signal.SIGKILL)
    with shipped.open("a") as file:
        file.write('[3, "an order that was being wr')  # as a consumer that is killed may leave it
    curl(f"curl -s -X PUT -d tea localhost:{ports['8002']}/orders/3")
    curl(f"curl -s -X PUT -d \xff localhost:{ports['8002']}/orders/4")  # which is no UTF-8
    start("consumer", shipped)
    eventually_here(lambda: shipped.read_text().count("\n") == 5)
    assert [json.loads(line) for line in shipped.read_text().splitlines()] == [
        [0, "book"],
        [1, "lamp"],
        [2, "chair"],
        [3, "tea"],
        [4, "\\xff"],
    ]


async def test_the_log_has_each_order_once(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client, await client.read_log("orders") as reader:
        assert [entry.data async for entry in reader.read()] == [b"book", b"lamp", b"chair", b"tea", b"\xff"]
