"""docker-compose.yml as its readers use it, with a real Docker daemon."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from . import docker as images
from .docker import Docker, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.exhaustive,
    pytest.mark.containers,
    pytest.mark.timeout(1200),  # the first one makes a base image, wheels and the image
]


class Composed:
    """The project of docker-compose.yml."""

    def __init__(self, docker: Docker, directory: Path) -> None:
        self.docker = docker
        self.directory = directory
        self._variables = {
            "BASE": images.BASE,
            "ZOOKEEPER_IMAGE": images.ZOOKEEPER,
            "COMPOSE_PROJECT_NAME": "bkpy",
            "DOCKER_BUILDKIT": "0",  # Debian's Docker has none
        }

    def compose(self, *words: object) -> str:
        return self.docker.run("docker-compose", *words, cwd=self.directory, timeout_s=600.0, **self._variables)

    def client(self, *words: object) -> str:
        """What `bkpy` prints in a container of the cluster's network."""
        return self.compose("run", "--rm", "-T", "client", *words)

    def state(self, service: str) -> dict[str, Any]:
        """The state of its container, as Docker tells it; `User` of its image is added."""
        (found,) = json.loads(self.docker.run("docker", "inspect", f"bkpy_{service}_1"))
        return {**found["State"], "User": found["Config"]["User"], "Restarts": found["RestartCount"]}

    def healthy(self, service: str) -> bool:
        state = self.state(service)
        return state["Running"] and state["Health"]["Status"] == "healthy"

    def ask(self, service: str, page: str) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of a page that the service has."""
        code = (
            "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8000); "
            "c.request('GET', sys.argv[1]); r = c.getresponse(); print(r.status); print(r.read().decode())"
        )
        status, told = self.compose("exec", "-T", service, "/opt/bkpy/bin/python3", "-c", code, page).splitlines()
        return int(status), json.loads(told)


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """The cluster, up. A test that stops a part of it starts it again."""
    directory = tmp_path_factory.mktemp("docker")
    with images.daemon(directory) as docker:
        images.make_base(docker, directory)
        images.make_zookeeper(docker, directory)
        one = Composed(docker, images.make_context(directory))
        one.compose("build", "bookie1", "client")
        try:
            one.compose("up", "-d")
            yield one
        finally:
            one.compose("down", "--volumes")


def test_the_demo_stores_the_flights_and_reads_them_back(composed: Composed) -> None:
    told = composed.client("demo")
    assert "Wrote 336,776 entries" in told
    assert "All of it agrees with the source." in told
    assert told.count(" same") == 12


@pytest.mark.long
def test_the_demo_runs_again_beside_what_it_stored_before(composed: Composed) -> None:
    assert "All of it agrees with the source." in composed.client("demo")


def test_a_bookie_is_nobody_in_particular_and_ends_when_it_is_told_to(composed: Composed) -> None:
    assert composed.state("bookie1")["User"] == "bkpy"
    composed.compose("stop", "bookie1")
    assert composed.state("bookie1")["ExitCode"] == 0
    for _ in range(3):  # while it is loaded, too
        composed.compose("start", "bookie1")
        composed.compose("stop", "bookie1")
        assert composed.state("bookie1")["ExitCode"] in (0, 143)
    composed.compose("start", "bookie1")
    until(lambda: composed.healthy("bookie1"))


def test_a_bookie_that_dies_is_started_again_with_what_it_had(composed: Composed) -> None:
    ledger = store(composed, 1000)
    before = composed.state("bookie2")
    os.kill(before["Pid"], signal.SIGKILL)
    until(lambda: composed.state("bookie2")["Restarts"] > before["Restarts"] and composed.healthy("bookie2"))
    (fragment,) = json.loads(composed.client("ledger", "show", ledger, "--json"))["fragments"]
    assert [hold["state"] for hold in fragment["holds"]] == ["complete"] * 3
    assert [hold["count"] for hold in fragment["holds"]] == [1000] * 3
    assert composed.client("ledger", "read", ledger).split() == [str(i) for i in range(1000)]


def test_what_was_stored_outlives_the_containers(composed: Composed) -> None:
    ledger = store(composed, 100)
    composed.compose("down")
    composed.compose("up", "-d")
    assert composed.client("ledger", "read", ledger).split() == [str(i) for i in range(100)]


def test_a_fourth_bookie_comes_and_one_goes(composed: Composed) -> None:
    """The two lines that docs/how-to/containers.md has."""
    composed.compose("up", "-d", "bookie4")
    until(lambda: composed.healthy("bookie4"))
    composed.compose("kill", "bookie2")
    ledger = store(composed, 100)
    (fragment,) = json.loads(composed.client("ledger", "show", ledger, "--json"))["fragments"]
    assert sorted(fragment["bookies"]) == ["bookie1", "bookie3", "bookie4"]
    composed.compose("start", "bookie2")
    until(lambda: composed.healthy("bookie2"))


def test_a_bookie_without_zookeeper_lives_and_is_not_ready(composed: Composed) -> None:
    assert composed.ask("bookie1", "/readyz")[0] == 200
    composed.compose("stop", "zookeeper")
    until(lambda: composed.ask("bookie1", "/readyz")[0] == 503)
    status, told = composed.ask("bookie1", "/healthz")
    assert status == 200
    assert told == {"bookie_id": "bookie1", "live": True, "ready": False, "why": "the metadata store is away"}
    composed.compose("start", "zookeeper")
    until(lambda: composed.ask("bookie1", "/readyz")[0] == 200)


def store(composed: Composed, lines: int) -> str:
    """The id of a new ledger with the numbers below `lines`."""
    script = f"seq 0 {lines - 1} | bkpy ledger write"
    return composed.compose("run", "--rm", "-T", "--entrypoint", "sh", "client", "-c", script).split()[-1]
