"""A bookie that is killed for good, on real processes and a real ZooKeeper: marked, copied, read."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.command import as_json, bkpy
from tests.in_process import rewrite
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy as library
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.local import LocalCluster
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.replication.election import Election, leader
from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing
from bkpy.protocol.ledger.ledger_metadata import Fragment
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.local.zookeeper import ZooKeeperServer

DEADLINE_S = 90.0
PAUSE_S = 0.4  # a command, or a reading of all metadata, leaves the processor to what it waits for
SOON: dict[str, Any] = {
    "lost_bookie_settle_s": 0.5,
    "lost_bookie_recovery_delay_s": 1.0,
    "audit_look_interval_s": 0.2,
    "audit_follow_interval_s": 0.5,
    "open_ledger_grace_s": 0.5,
    "session_timeout_s": 4.0,
}


async def names(client: Client, ledger_id: int) -> set[str]:
    metadata, _ = await replication_context(client).cluster.catalog.read(ledger_id, fresh=True)
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


@pytest.mark.exhaustive
@pytest.mark.scenario(57)
async def test_a_killed_auditors_ledgers_are_copied_by_the_others(tmp_path: Path) -> None:
    soon = {**SOON, "metrics_port": 0, "worker_report_interval_s": 0.2}
    async with LocalCluster(tmp_path, 4, soon) as cluster, library.connect(cluster.connect_string) as client:
        uri = cluster.connect_string

        async def elected() -> bool:
            found = await asyncio.to_thread(as_json_or_none, "autorecovery", "auditor", uri=uri)
            return found is not None

        await eventually(elected, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        victim = as_json("autorecovery", "auditor", uri=uri)["auditor"]["name"]
        lines = [b"%d" % i for i in range(200)]
        ledgers = []
        for _ in range(20):
            async with await client.create_ledger() as writer:
                await writer.append_batch(lines)
            ledgers.append(writer.ledger_id)
        mine = [ledger_id for ledger_id in ledgers if victim in await names(client, ledger_id)]
        assert mine
        killed = next(bookie for bookie in cluster.bookies if bookie.id == victim)
        await killed.kill()

        async def healed() -> bool:
            return not any([victim in await names(client, ledger_id) for ledger_id in mine])

        await eventually(healed, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        for ledger_id in ledgers:
            reader = await client.open_ledger(ledger_id)
            assert [entry.data async for entry in reader.read()] == lines

        async def quiet() -> bool:
            told = await asyncio.to_thread(as_json, "autorecovery", "status", uri=uri)
            return told["ledgers"] == 0 and told["absent"][victim]["worked_off"]

        await eventually(quiet, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        told = as_json("autorecovery", "status", uri=uri)
        assert told["enabled"]
        assert told["auditor"]["name"] != victim
        shown = bkpy("autorecovery", "status", uri=uri).stdout.decode()
        assert "lost; re-replication has ended" in shown

        async def reported() -> bool:
            workers = (await asyncio.to_thread(as_json, "autorecovery", "status", uri=uri))["workers"]
            done = sum(one["ledgers_done"] for one in workers if one["name"] != victim)
            return done >= len(mine) and victim not in {one["name"] for one in workers}

        await eventually(reported, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        await metrics_are_those_of_the_documentation([info.metrics_port for info in client.bookies.values()])
        await killed.start()  # as it was: nothing to do, but to forget what it had

        async def back() -> bool:
            return not (await asyncio.to_thread(as_json, "autorecovery", "status", uri=uri))["absent"]

        await eventually(back, pause_s=PAUSE_S, deadline_s=DEADLINE_S)


async def scraped(port: int) -> dict[str, str]:
    """The samples of a metrics page, and the names of those that have none yet."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    names = {line.split()[2]: "" for line in lines if line.startswith("# TYPE bkpy_")}
    return names | dict(line.rsplit(" ", 1) for line in lines if line.startswith("bkpy_"))


# What bookies without a certificate, and for clients of bkpy, don't have.
NOT_OF_ALL = {"bkpy_bookie_certificate_end_seconds", "bkpy_bookie_bookkeeper_requests"}


async def metrics_are_those_of_the_documentation(ports: list[int]) -> None:
    """Each metric has its row in docs/reference/metrics.md, and what that names, for an alarm too, is there."""
    pages = [await scraped(port) for port in ports]
    there = {
        name for name in pages[0] if "{" not in name and not name.endswith(("_created", "_bucket", "_sum", "_count"))
    }
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if re.match(r"\| `bkpy_(?!client_)", line)]
    documented = set()
    for row in rows:
        first, *others = re.findall(r"`(\w+)(?:\{\w+\})?`", row)
        family = "_".join(first.split("_")[:2])
        documented |= {first, *(f"{family}{other}" for other in others)}
    assert documented - NOT_OF_ALL == there
    rules = (Path(__file__).parents[2] / "deploy" / "alarms.yml").read_text()
    alarms = {re.sub("_bucket$", "", name) for name in re.findall(r"\bbkpy_(?!client_)\w*[a-z]\b", rules)}
    assert len(alarms) > 12
    assert alarms <= there | NOT_OF_ALL
    assert sum(float(page["bkpy_replication_done_ledgers_total"]) for page in pages) > 0
    assert sum(float(page["bkpy_replication_copied_bytes_total"]) for page in pages) > 0
    assert max(float(page["bkpy_auditor_leading"]) for page in pages) == 1
    assert max(float(page['bkpy_replication_ledgers{copies_left="1"}']) for page in pages) == 0


def as_json_or_none(*arguments: str, uri: str) -> Any:
    with contextlib.suppress(AssertionError):
        return as_json(*arguments, uri=uri)
    return None


@pytest.mark.exhaustive
async def test_switched_off_nothing_is_marked_and_a_process_without_a_bookie_does_it_too(tmp_path: Path) -> None:
    from tests.command import PATIENCE_S, start

    async with (
        LocalCluster(tmp_path, 4, {**SOON, "auto_recovery": False}) as cluster,
        library.connect(cluster.connect_string) as client,
    ):
        uri = cluster.connect_string
        assert "none runs with auto_recovery" in bkpy("autorecovery", "auditor", uri=uri, status=1).stderr.decode()
        assert bkpy("autorecovery", "disable", uri=uri).stdout == b"autorecovery is off\n"
        async with await client.create_ledger() as writer:
            await writer.append(b"x")
        flags = [f"--{name}={value}" for name, value in SOON.items() if name != "session_timeout_s"]
        with start("autorecovery", "run", "--name", "alone", "--metrics-port=0", *flags, uri=uri) as running:
            try:
                assert running.stderr is not None
                where = (await asyncio.to_thread(running.stderr.readline)).decode()
                while "has become internal" in where:
                    assert "WARNING bkpy.autorecovery: flag: setting " in where
                    where = (await asyncio.to_thread(running.stderr.readline)).decode()
                port = int(where.removeprefix("metrics at http://127.0.0.1:").removesuffix("/metrics\n"))
                victim = sorted(await names(client, writer.ledger_id))[0]
                await next(bookie for bookie in cluster.bookies if bookie.id == victim).kill()

                async def absent() -> bool:
                    return victim in (await asyncio.to_thread(as_json, "autorecovery", "status", uri=uri))["absent"]

                await eventually(absent, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
                await asyncio.sleep(2 * SOON["lost_bookie_recovery_delay_s"])
                told = as_json("autorecovery", "status", uri=uri)
                assert (told["enabled"], told["ledgers"], told["auditor"]["name"]) == (False, 0, "alone")
                assert bkpy("autorecovery", "enable", uri=uri).stdout == b"autorecovery is on\n"

                async def healed() -> bool:
                    return victim not in await names(client, writer.ledger_id)

                await eventually(healed, pause_s=PAUSE_S, deadline_s=DEADLINE_S)

                async def counted() -> bool:  # a little after the metadata name others
                    return float((await scraped(port))["bkpy_replication_done_ledgers_total"]) >= 1

                await eventually(counted, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
                assert (await scraped(port))["bkpy_auditor_leading"] == "1.0"
            finally:
                running.terminate()
                assert running.wait(PATIENCE_S) == 0
        assert as_json_or_none("autorecovery", "auditor", uri=uri) is None


async def test_marks_and_terms_on_a_real_zookeeper(zookeeper: ZooKeeperServer) -> None:
    """What the store in memory says of transactions that are refused is true: which operation, and whose node."""
    uri = f"zk://{zookeeper.connect_string}/marks-and-terms"
    runtime = real_runtime()
    settings = RecoverySettings()
    async with contextlib.AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            store, root = await connect_store(uri, runtime, session_timeout_s=30.0)
            stack.push_async_callback(store.close)
            stores.append(store)
        await init_cluster(stores[0], root)
        terms: list[asyncio.Queue[str]] = [asyncio.Queue(), asyncio.Queue()]

        async def stand(number: int) -> None:
            async def lead(node: str) -> None:
                terms[number].put_nowait(node)
                await asyncio.Event().wait()

            await Election(stores[number], root, str(number), runtime, settings).stand(lead)

        async with asyncio.timeout(DEADLINE_S):
            first = asyncio.ensure_future(stand(0))
            node = await terms[0].get()
            second = asyncio.ensure_future(stand(1))
            marks = UnderreplicationQueue(stores[0], root, runtime, settings, guard=node)
            assert await marks.add(7, {"a": LostBookie(1)}) == Done(0)
            assert await marks.add(7, {"b": LostBookie(1)}) == Done(1)
            old = await marks.read(7)
            assert old is not None
            assert await marks.add(7, {"a": LostBookie(1)}) == Done(2)
            assert await marks.remove(old, ["a"]) == Changed()
            found = await leader(stores[1], root)
            assert found is not None
            assert (found.candidate, found.node) == ("0", node)
            first.cancel()
            await asyncio.wait([first])
            await Election(stores[0], root, "0", runtime, settings).withdraw()
            await stores[1].delete(node)  # as the end of a session does, of which nobody has heard
            successor = await terms[1].get()
            assert successor != node
            for outcome in (
                await marks.add(7, {"c": LostBookie(1)}),
                await marks.add(8, {"c": LostBookie(1)}),
                await marks.remove(old, ["a"]),
            ):
                assert isinstance(outcome, Missing | Changed)
            assert marks.refused(await marks.add(9, {"c": LostBookie(1)}))
            new = UnderreplicationQueue(stores[1], root, runtime, settings, guard=successor)
            mark = await new.read(7)
            assert mark is not None
            assert mark.lost.keys() == {"a", "b"}
            assert [ledger_id async for ledger_id in new.list()] == [7]
            assert await new.remove(mark, ["a"]) == Done(3)
            mark = await new.read(7)
            assert mark is not None
            assert await new.remove(mark, ["b"]) == Gone()
            await new.tidy()
            assert await stores[1].children(f"{root}/underreplication/ledgers") == []
            second.cancel()
            await asyncio.wait([second])


@pytest.mark.exhaustive
async def test_what_a_bookie_never_had_is_found_and_copied(tmp_path: Path) -> None:
    """The metadata name a bookie that has nothing of the ledger, as if its disk had forgotten it."""
    soon = {**SOON, "replicas_check_interval_s": 1.0, "placement_check_interval_s": 1.0}
    async with LocalCluster(tmp_path, 4, soon) as cluster, library.connect(cluster.connect_string) as client:
        uri = cluster.connect_string
        async with await client.create_ledger() as writer:
            await writer.append_batch([b"%d" % i for i in range(200)])
        ledger_id = writer.ledger_id
        a, b, _ = writer.ensemble
        other = next(bookie.id for bookie in cluster.bookies if bookie.id not in writer.ensemble)
        await rewrite(client, ledger_id, fragments=(Fragment(0, (a, b, other)),))

        async def healed() -> bool:
            return other not in await names(client, ledger_id)

        await eventually(healed, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        await whole(client, ledger_id)

        async def told() -> bool:
            found = await asyncio.to_thread(as_json, "autorecovery", "status", uri=uri)
            checks = found["checks"]
            return found["ledgers"] == 0 and all(
                checks[name]["ended_s"] is not None for name in ("replicas", "placement")
            )

        await eventually(told, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        assert b"replicas" in (await asyncio.to_thread(bkpy, "autorecovery", "status", uri=uri)).stdout
