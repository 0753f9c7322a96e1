"""Apache BookKeeper's own tests, of its jar of tests, on bookies of ours.

Their cluster is a class of that jar, whose place one of ours takes in the class path (`upstream/java`). What each class
is known to do is in `upstream/classes.py`, and the page of the docs has it from there.
"""

from __future__ import annotations

import asyncio
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bkpy.local.process import ended_with_parent
from tests.bookkeeper.java_cluster import peers, said
from tests.bookkeeper.upstream.classes import CLASSES
from tests.bookkeeper.upstream.launcher import Launcher
from tests.command import PATIENCE_S, PRELOADED, environment

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]  # BookKeeper's tests have timeouts of their own

HERE = Path(__file__).parent / "upstream"
PACKAGE = "org.apache.bookkeeper"
# As BookKeeper's build runs them: some tests have deadlines that a busy machine misses.
RERUNS = 2
# Adds, reads, fences and recoveries, each of several kinds, in some minutes; `make test-long` runs the others.
OFTEN = {
    "client.BookKeeperTest",
    "client.TestBatchedRead",
    "client.TestFencing",
    "client.LedgerRecoveryTest",
    "client.TestReadLastConfirmedLongPoll",
    "bookie.BookieDeferredSyncTest",
    "test.BookieReadWriteTest",
    "test.LedgerCreateDeleteTest",
}
CERTIFICATES = (".pem", ".jks", ".p12", "Password.txt")
OPENED = (
    *("io", "lang", "lang.reflect", "net", "nio", "nio.channels.spi", "nio.file", "time", "util", "util.concurrent"),
    *("util.concurrent.atomic", "util.concurrent.locks", "util.stream", "util.zip"),
)
JVM = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    # A client that prefers the bookie of its own machine looks for the machine's name, which may be that of loopback.
    "-Dorg.apache.bookkeeper.conf.readsystemproperties=true",
    "-DallowLoopback=true",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
)


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our classes before those of the jars. What bookies are forked from is loaded, too, before tests have timeouts."""
    PRELOADED.run(["--version"], stdin=b"", env=environment(None), timeout_s=PATIENCE_S)
    peer = peers("peer")
    pom = HERE / "pom.xml"
    version = peer.version_of("bookkeeper-server", pom.read_text())
    jars = peer.fetch_jars("Apache BookKeeper", pom, peer.cache_directory() / f"bookkeeper-tests-{version}")
    classes = tmp_path_factory.mktemp("classes")
    with zipfile.ZipFile(
        jars / f"bookkeeper-server-{version}-tests.jar"
    ) as jar:  # tests of TLS name their certificates as files
        jar.extractall(classes, [name for name in jar.namelist() if name.endswith(CERTIFICATES)])
    sources = [str(path) for path in sorted((HERE / "java").rglob("*.java"))]
    peer.run([peer.compiler(), "-cp", f"{jars}/*", "-d", str(classes), *sources])
    return os.pathsep.join((str(classes), f"{jars}/*"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.long) for name in CLASSES]
)
async def test_a_class_of_upstreams_tests(name: str, class_path: str, tmp_path: Path) -> None:
    known = CLASSES[name]
    async with Launcher(tmp_path / "bookies") as launcher:
        fates = await run_tests(launcher, tmp_path, class_path, name)
        for _ in range(RERUNS):
            for test in fates["failed"].keys() - known.failures.keys() - known.racing.keys():
                again = await run_tests(launcher, tmp_path, class_path, name, test)
                if test in again["passed"]:
                    fates["passed"][test] = again["passed"][test]
                    del fates["failed"][test]
    passed, failed = (fates[fate].keys() - known.racing.keys() for fate in ("passed", "failed"))
    assert failed == known.failures.keys(), fates["failed"]
    assert fates["ignored"].keys() == known.ignored
    assert len(passed) == known.passed


async def run_tests(launcher: Launcher, directory: Path, class_path: str, *words: str) -> Mapping[str, dict[str, str]]:
    """By fate (passed, failed, ignored) the names of the tests, and why they failed."""
    options = [*JVM, f"-Djava.io.tmpdir={directory}", f"-Dbkpy.launcher={launcher.port}", "-cp", class_path]
    words = (f"{PACKAGE}.{words[0]}", *words[1:])
    command = [peers("peer").java(), *options, "RunTests", *words]
    process = await asyncio.create_subprocess_exec(
        *ended_with_parent(command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=directory
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    (directory / "output.txt").write_bytes(output)
    lines = said(output)
    assert lines, output.decode(errors="replace")[-4000:]
    assert lines[-1] == ["ended"], lines[-1]
    fates: dict[str, dict[str, str]] = {"passed": {}, "failed": {}, "ignored": {}}
    for fate, test, *why in lines[:-1]:
        fates[fate][test] = " ".join(why)
    return fates
