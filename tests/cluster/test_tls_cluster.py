"""A cluster of real processes with TLS and rights: healed by its bookies, asked by commands, given new certificates."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.certificates import Authority
from tests.cluster.test_autorecovery import SOON, names
from tests.command import COMMAND, environment, start
from tests.command import bkpy as command
from tests.conftest import run_elsewhere

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import free_port, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 90.0
RIGHTS = 'write = ["cn:writer"]\nread = ["cn:reader"]\nbookies = ["cn:bookie"]\n'


def config(ca: Authority, directory: Path, **others: Any) -> dict[str, Any]:
    rights = directory / "rights.toml"
    rights.write_text(RIGHTS)
    return {**ca.settings(ca.issue("bookie")), "access_file": str(rights), **others}


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four bookies with TLS and rights, whose pages have TLS too. Only a signal gives them new certificates."""
    directory = tmp_path_factory.mktemp("secured")
    settings = config(ca, directory, metrics_port=0, metrics_tls=True, tls_reload_interval_s=3600.0, **SOON)
    local = LocalCluster(directory / "cluster", 4, settings)
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())


@pytest.mark.exhaustive
async def test_bookies_show_each_other_their_certificates_when_they_heal(secured: LocalCluster, ca: Authority) -> None:
    mine = ca.settings(ca.issue("writer"))
    async with bkpy.connect(secured.connect_string, **mine) as client:
        lines = [b"%d" % i for i in range(200)]
        async with await client.create_ledger() as writer:
            await writer.append_batch(lines)
        left_open = await client.create_ledger()
        await left_open.append(b"x")
        left_open.abandon()
        named = await names(client, writer.ledger_id)
        victim = next(bookie for bookie in secured.bookies if bookie.id in named)
        await victim.kill()

        async def healed() -> bool:
            return not any([victim.id in await names(client, i) for i in (writer.ledger_id, left_open.ledger_id)])

        assert await poll(healed, DEADLINE_S)
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.data async for entry in reader.read()] == lines
    await victim.start()


@pytest.mark.exhaustive
async def test_commands_show_certificates(secured: LocalCluster, ca: Authority) -> None:
    variables = {
        name: {f"BKPY_{setting.upper()}": value for setting, value in ca.settings(ca.issue(name)).items()}
        for name in ("writer", "reader", "stranger")
    }
    variables["nameless"] = {"BKPY_TLS_CA_FILE": str(ca.file)}
    uri = secured.connect_string

    def run(name: str, *words: str, stdin: bytes = b"", status: int = 0) -> bytes:
        done = command(*words, uri=uri, stdin=stdin, status=status, **variables.get(name, {}))
        return done.stderr if status else done.stdout

    def tried() -> None:
        sizes = ("--ensemble", "2,2,2")
        ledger_id = run("writer", "ledger", "write", *sizes, stdin=b"one\ntwo\n").decode().strip()
        assert run("reader", "ledger", "read", ledger_id) == b"one\ntwo\n"
        assert b"does not give cn:stranger" in run("stranger", "ledger", "read", ledger_id, status=1)
        assert b"takes only clients with a certificate" in run("nameless", "ledger", "read", ledger_id, status=1)
        assert b"TLS only" in run("", "ledger", "read", ledger_id, status=1)
        assert b"file of rights" in run("reader", "ledger", "write", *sizes, stdin=b"x\n", status=1)

    await asyncio.to_thread(tried)


async def test_the_health_of_a_bookie_whose_page_has_tls(secured: LocalCluster, ca: Authority) -> None:
    pages = re.findall(r"metrics at https://127.0.0.1:(\d+)/", secured.bookies[0].log_path.read_text())
    port = pages[-1]  # of its last run
    variables = {f"BKPY_{name.upper()}": value for name, value in ca.settings(ca.issue("probe", hosts=())).items()}
    variables |= {"BKPY_METRICS_PORT": port, "BKPY_METRICS_TLS": "true"}

    def asked() -> None:
        ready = b"bookie bookie-1 is ready\n"
        assert command("bookie", "health", "--ready", **variables).stdout == ready
        assert command("bookie", "health", "--admin", f"https://127.0.0.1:{port}", **variables).stdout == ready
        told = command("bookie", "health", "--admin", f"127.0.0.1:{port}", status=1, **variables).stderr
        assert b"no bookie answers" in told

    await asyncio.to_thread(asked)


def test_metrics_of_a_process_without_a_bookie_can_be_kept_from_others(secured: LocalCluster, ca: Authority) -> None:
    mine = ca.settings(ca.issue("prometheus"))
    variables = {f"BKPY_{name.upper()}": value for name, value in ca.settings(ca.issue("page")).items()}
    words = ("autorecovery", "run", "--metrics_port=0", "--metrics_tls")
    assert b"metrics_tls needs" in command(*words, uri=secured.connect_string, status=1).stderr
    env = {**environment(secured.connect_string), **variables}
    with start(*words, uri=secured.connect_string, env=env) as running:
        try:
            assert running.stderr is not None
            url = running.stderr.readline().decode().removeprefix("metrics at ").strip()
            assert url.startswith("https://127.0.0.1:")
            context = ssl.create_default_context(cafile=str(ca.file))
            with pytest.raises((ssl.SSLError, OSError), match=r"(?i)certificate|reset|closed|broken|eof"):
                urllib.request.urlopen(url, context=context, timeout=DEADLINE_S)
            context.load_cert_chain(mine["tls_certificate_file"], mine["tls_key_file"])
            with urllib.request.urlopen(url, context=context, timeout=DEADLINE_S) as page:
                assert b"bkpy_auditor_leading" in page.read()
        finally:
            running.terminate()
            running.wait(DEADLINE_S)


def test_the_signal_ends_no_bookie_that_is_still_starting(ca: Authority, tmp_path: Path) -> None:
    """Here it waits for ZooKeeper. What becomes of a signal is seen in /proc, whenever it would arrive."""
    words = [f"--{name}={value}" for name, value in ca.settings(ca.issue("bookie")).items()]
    words += [f"--{kind}_directories={tmp_path / kind}" for kind in ("journal", "ledger")]
    words += [f"--metadata_uri=zk://127.0.0.1:{free_port()}/l", "--bookie_id=a", f"--listen=127.0.0.1:{free_port()}"]
    bookie = subprocess.Popen([*COMMAND, "bookie", "run", *words], stderr=subprocess.PIPE, env=environment(None))
    try:
        assert bookie.stderr is not None
        assert any(b"looks for its metadata" in line for line in bookie.stderr)
        status = Path(f"/proc/{bookie.pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        assert caught >> (signal.SIGHUP - 1) & 1
    finally:
        bookie.kill()
        bookie.communicate()


async def test_a_signal_gives_new_certificates_to_new_connections(secured: LocalCluster, ca: Authority) -> None:
    """Under load, on uvloop: what is connected goes on."""
    mine = ca.settings(ca.issue("writer"))

    def serial(port: int) -> str:
        context = ssl.create_default_context(cafile=str(ca.file))
        context.load_cert_chain(mine["tls_certificate_file"], mine["tls_key_file"])
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            certificate = secure.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    async with bkpy.connect(secured.connect_string, **mine) as client:
        writer = await client.create_ledger(ack_quorum=3)
        written, stopping = 0, False

        async def write() -> None:
            nonlocal written
            while not stopping:
                await asyncio.gather(*(writer.append(b"x" * 1000) for _ in range(100)))
                written += 100

        writing = asyncio.ensure_future(write())
        before = {await asyncio.to_thread(serial, bookie.port) for bookie in secured.bookies}
        new = ca.issue("bookie", file="renewed")
        shutil.copy(new.certificate, ca.directory / "bookie.pem")
        shutil.copy(new.key, ca.directory / "bookie-key.pem")
        for bookie in secured.bookies:
            assert bookie.pid is not None
            os.kill(bookie.pid, signal.SIGHUP)

        async def renewed() -> bool:
            found = {await asyncio.to_thread(serial, bookie.port) for bookie in secured.bookies}
            return len(found) == 1 and not found & before

        assert await poll(renewed, DEADLINE_S)
        at = written

        async def goes_on() -> bool:
            return written > at

        assert await poll(goes_on, DEADLINE_S)
        stopping = True
        await writing
        ensemble = writer.ensemble
        await writer.close()
        assert writer.metadata.fragments[-1].bookies == tuple(ensemble)
        assert len(writer.metadata.fragments) == 1  # no connection was lost
        assert writer.last_add_confirmed + 1 == written
