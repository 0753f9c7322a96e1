"""Commands of BookKeeper's own shell, each a process of its own, on bookies of ours."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.errors import BookieUnavailableError
from bkpy.local import LocalCluster
from bkpy.local.process import ManagedProcess, ended_with_parent
from tests.bookkeeper.java_cluster import TIMEOUT_S, peers
from tests.conftest import run_elsewhere
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bkpy.metadata.store.store import MetadataStore

pytestmark = pytest.mark.exhaustive

ENTRIES = 50
PASSWORD = b"secret"
# `bookiesanity` tries the bookie that the settings name.
CONF = """\
bookieId=bookie-1
advertisedAddress=127.0.0.1
allowLoopback=true
metadataServiceUri=zk+null://127.0.0.1:{port}/ledgers
"""


@dataclass
class Shell:
    cluster: LocalCluster
    conf: Path
    class_path: str

    def command(self, main: str, *words: object) -> list[str]:
        """Of a class of BookKeeper's."""
        options = ["-Xmx256m", *peers("bookkeeper").JVM, "-Dlog4j2.level=INFO", "-cp", self.class_path]
        named = [f"org.apache.bookkeeper.{main}", *map(str, words)]
        return ended_with_parent([peers("peer").java(), *options, *named])

    async def run(self, *words: object, status: int = 0) -> str:
        """What a command prints; it has to end with that status. Most commands print by the log, at INFO."""
        process = await asyncio.create_subprocess_exec(
            *self.command("bookie.BookieShell", "-conf", self.conf, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode(errors="replace")
        assert process.returncode == status, text[-4000:]
        return text

    async def written(self) -> int:
        async with bkpy.connect(self.cluster.connect_string) as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2, password=PASSWORD)
            await writer.append_batch(entries_of(writer.ledger_id))
            await writer.close()
            return writer.ledger_id


def entries_of(ledger_id: int) -> list[bytes]:
    return [f"entry {n} of {ledger_id}".encode() for n in range(ENTRIES)]


async def gone(store: MetadataStore, path: str) -> bool:
    return not await store.exists(path)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    directory = tmp_path_factory.mktemp("shell")
    cluster = LocalCluster(directory / "cluster", 4, {"protocol": "bookkeeper"})
    class_path, _ = peers("bookkeeper").fetch()
    try:
        run_elsewhere(cluster.start())
        conf = directory / "bk.conf"
        conf.write_text(CONF.format(port=cluster.zookeeper.port))
        yield Shell(cluster, conf, class_path)
    finally:
        run_elsewhere(cluster.kill())


async def test_simpletest(shell: Shell) -> None:
    output = await shell.run("simpletest", "-ensemble", 3, "-writeQuorum", 2, "-ackQuorum", 2, "-numEntries", 100)
    assert "100 entries written to ledger" in output


async def test_bookiesanity(shell: Shell) -> None:
    output = await shell.run("bookiesanity", "-entries", 10)
    assert "Read 10 entries" in output
    assert "Bookie sanity test succeeded" in output


async def test_listbookies(shell: Shell) -> None:
    output = await shell.run("listbookies", "-rw")
    found = re.findall(r"BookieID:([^,]+), IP:127\.0\.0\.1, Port:([0-9]+)", output)
    assert sorted(found) == [(bookie.id, str(bookie.port)) for bookie in shell.cluster.bookies]


async def test_bookieinfo(shell: Shell) -> None:
    output = await shell.run("bookieinfo")
    found = re.findall(r"BookieID:([^,]+),.*Free: [1-9][0-9]*\(.*Total: [1-9][0-9]*\(", output)
    assert sorted(found) == [bookie.id for bookie in shell.cluster.bookies]


async def test_ledgers_are_listed_shown_and_read(shell: Shell) -> None:
    ledger_id = await shell.written()
    assert f"ledgerID: {ledger_id}\n" in await shell.run("listledgers")
    shown = await shell.run("ledgermetadata", "-ledgerid", ledger_id)
    assert f"writeQuorumSize=2, ackQuorumSize=2, state=CLOSED, length={sum(map(len, entries_of(ledger_id)))}" in shown
    assert f"lastEntryId={ENTRIES - 1}, digestType=CRC32C" in shown
    read = (await shell.run("readledger", "-ledgerid", ledger_id, "-msg")).splitlines()
    assert [line.encode() for line in read if line.startswith("entry ")] == entries_of(ledger_id)


async def test_ledgers_of_a_killed_bookie_are_copied_by_recover(shell: Shell) -> None:
    ledger_id = await shell.written()
    async with bkpy.connect(shell.cluster.connect_string) as client:
        lost, *left = (await client.ledger_metadata(ledger_id)).fragments[0].bookies
    bookie = next(bookie for bookie in shell.cluster.bookies if bookie.id == lost)
    await bookie.kill()
    try:
        assert f"Recovered ledger {ledger_id}." in await shell.run("recover", "-f", lost)
        async with bkpy.connect(shell.cluster.connect_string) as client:
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            ensemble = reader.metadata.fragments[0].bookies
            assert lost not in ensemble
            assert set(left) < set(ensemble)
            assert [entry.data async for entry in reader.read()] == entries_of(ledger_id)
    finally:
        await bookie.start()


async def test_commands_on_the_metadata_of_a_cluster(shell: Shell) -> None:
    first = shell.cluster.bookies[0]
    async with shell.cluster.metadata() as (store, root):
        instance_id = (await store.get(f"{root}/INSTANCEID"))[0].decode()
    assert f"InstanceId: {instance_id}" in await shell.run("whatisinstanceid")
    endpoint = await shell.run("endpointinfo", "-b", first.id)
    assert "Protocol: bookie-rpc" in endpoint
    assert f"Address: 127.0.0.1 : {first.port}" in endpoint
    about = await shell.run("clusterinfo")
    assert re.search(r'"totalBookiesCount" : 4,\s+"writableBookiesCount" : 4,', about)
    kept, deleted = await shell.written(), await shell.written()
    await shell.run("deleteledger", "-ledgerid", deleted, "-force")
    listed = {bookie.id: await shell.run("listledgers", "-bookieid", bookie.id) for bookie in shell.cluster.bookies}
    assert len([name for name, output in listed.items() if f"ledgerID: {kept}\n" in output]) == 3
    assert not [name for name, output in listed.items() if f"ledgerID: {deleted}\n" in output]
    holder = next(name for name, output in listed.items() if f"ledgerID: {kept}\n" in output)
    words = ("-ledgerid", kept, "-firstentryid", 0, "-lastentryid", ENTRIES)  # the last one is left out
    read = await shell.run("readledger", *words, "-bookie", holder)
    assert read.count(f"--------- Lid={kept}, Eid=") in (ENTRIES * 2 // 3, ENTRIES * 2 // 3 + 1)
    refused = await shell.run("cookie_get", first.id, status=255)
    assert "Bookie id should be in the format of '<hostname>:<port>'" in refused


async def test_a_dead_bookie_is_decommissioned_once_autorecovery_has_copied_its_ledgers(shell: Shell) -> None:
    ledgers = [await shell.written() for _ in range(5)]
    lost = shell.cluster.bookies[-1]
    recovery = ManagedProcess(shell.conf.with_name("autorecovery.log"))
    async with shell.cluster.metadata() as (store, root):
        assert "Disabling autorecovery" in await shell.run("autorecovery", "-disable")
        assert "Enabling autorecovery" in await shell.run("autorecovery", "-enable")
        recovery.spawn(shell.command("replication.AutoRecoveryMain", "-c", shell.conf))
        try:
            await eventually(lambda: store.exists(f"{root}/underreplication/auditorelection/V_0000000000"))
            assert "Auditor: bookie-1\n" in await shell.run("whoisauditor")
            await shell.run("triggeraudit")
            await shell.run("lostbookierecoverydelay", "-set", 1)
            assert "LostBookieRecoveryDelay value in ZK: 1\n" in await shell.run("lostbookierecoverydelay", "-get")
            assert "is not shutdown yet" in await shell.run("decommissionbookie", "-bookieid", lost.id, status=255)
            await lost.kill()
            await eventually(lambda: gone(store, f"{root}/available/{lost.id}"))
            output = await shell.run("decommissionbookie", "-bookieid", lost.id)
            assert f"Cookie of the decommissioned bookie: {lost.id} is deleted successfully" in output
            assert "No Ledger is being recovered" in await shell.run("queryautorecoverystatus")
            assert "Under replicated ledger count: 0" in await shell.run("listunderreplicated", "-c")
        finally:
            await recovery.kill()
    async with bkpy.connect(shell.cluster.connect_string) as client:
        for ledger_id in ledgers:
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            assert lost.id not in reader.metadata.fragments[0].bookies
            assert [entry.data async for entry in reader.read()] == entries_of(ledger_id)
    with pytest.raises(BookieUnavailableError, match="cookie"):
        await lost.start()
