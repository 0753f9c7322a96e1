"""The dashboard's API over real sockets: it returns what its description says, and refuses who may not ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import jsonschema
import pytest
from openapi_spec_validator import validate
from tests.in_process import ROOT, InProcess, runtime_here
from tests.waiting import eventually

import bkpy
from bkpy.admin.bookie_pages import ClusterPages
from bkpy.admin.cluster_health import seen
from bkpy.client.client import open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.config.recovery import RecoverySettings
from bkpy.dashboard import watching
from bkpy.dashboard.actions import ACTIONS, Actions
from bkpy.dashboard.openapi import description
from bkpy.dashboard.reading import EXAMINED_MAX, LedgerReading, LogReading
from bkpy.dashboard.server import BODY_BYTES_MAX, Dashboard, serving
from bkpy.dashboard.watching import EVENTS_MAX, ClusterWatch
from bkpy.metadata.audit_trail import ActKind, Actor, AuditTrail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.metadata.store.memory import MemorySession

TOKEN = "a token of sixteen"
JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


PROTECTED = (ActKind.PROTECT, "/ledgers")


class Shown:
    """A dashboard of a cluster of three bookies, and an HTTP client of it."""

    def __init__(
        self, cluster: InProcess, store: MemorySession, client: bkpy.Client, watch: ClusterWatch, where: str
    ) -> None:
        self.cluster = cluster
        self.store = store
        self.client = client
        self.watch = watch
        self.where = where
        self.session = aiohttp.ClientSession()

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        async with self.session.get(self.where + path, headers=headers) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def draining(self) -> frozenset[str]:
        directory = replication_context(self.client).directory
        await directory.refresh()
        return directory.draining

    async def act(self, action: str, subject: object, status: int = 200, headers: dict[str, str] = JSON) -> Any:
        body = json.dumps({"subject": str(subject)})
        async with self.session.post(f"{self.where}/api/v1/actions/{action}", data=body, headers=headers) as response:
            assert response.status == status, await response.text()
            return await response.json()


@contextlib.asynccontextmanager
async def shown(directory: Path, *, actions: bool = True) -> AsyncIterator[Shown]:
    cluster = InProcess(directory)
    await cluster.start(metrics_port=0)
    settings = RecoverySettings()
    try:
        # What is asked of a suspended session is given up after that time; every other answer comes at once.
        store = cluster.tree.session(call_timeout_s=1.0)
        client = await open_client(store, ROOT, runtime_here(), client_settings())
        cluster.clients.append(client)
        admin = bkpy.AdminClient(client, settings)
        there = replication_context(client).cluster
        async with ClusterPages(there.store.runtime.clock, settings) as pages:
            watch = ClusterWatch(there, settings, pages, interval_s=0.05)
            dashboard = Dashboard(
                watch,
                LedgerReading(admin, there.catalog),
                LogReading(admin),
                actions=Actions(admin, pages) if actions else None,
                token=TOKEN if actions else "",
            )
            async with serving(dashboard, "127.0.0.1", 0, None, connections_max=16) as port:
                await watch.look()
                one = Shown(cluster, store, client, watch, f"http://127.0.0.1:{port}")
                async with one.session:
                    yield one
    finally:
        await cluster.stop()


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Shown]:
    async with shown(tmp_path) as one:
        yield one


def references_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for one in value.values():
            yield from references_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from references_in(one)


async def closed_ledger(client: bkpy.Client, **attributes: Any) -> int:
    writer = await client.create_ledger(**attributes)
    await writer.append_batch([b"entry"] * 5)
    await writer.close()
    return writer.ledger_id


@pytest.mark.thorough
def test_the_description_is_valid_and_has_every_model_and_action() -> None:
    found = description()
    validate(found)
    assert {path for path in found["paths"] if path.startswith("/actions/")} == {f"/actions/{name}" for name in ACTIONS}
    references = set(references_in(found))
    assert references <= {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}


@pytest.mark.thorough
async def test_every_read_returns_what_the_description_says(dashboard: Shown) -> None:
    ledger_id = await closed_ledger(dashboard.client, custom_metadata={"who": b"<b>"})
    async with await dashboard.client.open_log("orders", create=True) as log:
        await log.append(b"order")
        await dashboard.watch.look()
        served = await dashboard.get("/api/v1/openapi.json")
        assert served == description()
        for path, item in served["paths"].items():
            if "get" not in item:
                continue
            answer = await dashboard.get("/api/v1" + path.format(ledger_id=ledger_id, log="orders"))
            reference = item["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
            jsonschema.validate(answer, {"$ref": reference, "components": served["components"]})
    overview = await dashboard.get("/api/v1/overview")
    assert overview["health"]["bookies"] == 3
    assert (len(overview["rates"]), overview["error"]) == (1, "")
    assert overview["actions"] == list(ACTIONS)
    bookies = (await dashboard.get("/api/v1/bookies"))["bookies"]
    assert [(b["bookie_id"], b["state"], b["seen"]) for b in bookies] == [(name, "writable", True) for name in "abc"]
    one = await dashboard.get(f"/api/v1/ledgers/{ledger_id}")
    assert one["ledger"]["custom_metadata"] == {"who": "<b>"}
    assert "key" not in json.dumps(one)


@pytest.mark.thorough
async def test_ledgers_come_in_pages_and_by_what_is_wanted(dashboard: Shown) -> None:
    ids = [await closed_ledger(dashboard.client) for _ in range(5)]
    writer = await dashboard.client.create_ledger()
    found: list[int] = []
    after: int | None = -1
    while after is not None:
        page = await dashboard.get(f"/api/v1/ledgers?limit=2&after={after}")
        assert 1 <= len(page["ledgers"]) <= 2
        found += [row["ledger_id"] for row in page["ledgers"]]
        after = page["after"]
    assert found == [*ids, writer.ledger_id]
    page = await dashboard.get("/api/v1/ledgers?state=OPEN")
    assert [row["ledger_id"] for row in page["ledgers"]] == [writer.ledger_id]
    assert (page["after"], page["examined"]) == (None, 6)
    assert (await dashboard.get("/api/v1/ledgers?missing=true"))["ledgers"] == []
    assert (await dashboard.get("/api/v1/ledgers?log=none"))["ledgers"] == []
    assert EXAMINED_MAX >= 200


@pytest.mark.thorough
async def test_what_is_appended_is_seen_of_ledgers_and_logs(dashboard: Shown) -> None:
    async with await dashboard.client.open_log("orders", create=True) as log:
        assert await bkpy.AdminClient(dashboard.client).create_log("quiet")

        async def busy() -> Any:
            await log.append_batch([b"order"] * 100)
            await dashboard.watch.look()
            return (await dashboard.get("/api/v1/busiest"))["logs"]

        (orders,) = await eventually(busy, "the log is among the busiest")
        assert orders["log"] == "orders"
        assert orders["entries"] > 0
        (ledger,) = (await dashboard.get("/api/v1/busiest"))["ledgers"]
        assert (ledger["log"], ledger["bytes"]) == ("orders", orders["bytes"])
        async with await dashboard.client.read_log("orders") as reader:
            await reader.consumer("billing", create=True)
        lines = {line["log"]: line for line in (await dashboard.get("/api/v1/logs"))["logs"]}
        assert lines["orders"]["appended_entries"] == orders["entries"]
        assert (lines["orders"]["consumers"], lines["orders"]["lag"]) == (1, 0)
        assert [lines["quiet"][name] for name in ("appended_entries", "consumers", "lag")] == [None, 0, None]


@pytest.mark.thorough
async def test_a_recovery_is_an_event(dashboard: Shown) -> None:
    writer = await dashboard.client.create_ledger()
    await writer.append(b"entry")
    await dashboard.client.recover_ledger(writer.ledger_id)
    await dashboard.watch.look()
    events = [event["text"] for event in (await dashboard.get("/api/v1/events"))["events"] if event["kind"] == "ledger"]
    assert events == [f"ledger {writer.ledger_id} was recovered, and closed at entry 0"]


@pytest.mark.thorough
async def test_a_page_of_logs_reads_only_their_lists(dashboard: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = bkpy.AdminClient(dashboard.client, RecoverySettings())
    for name in "abcde":
        assert await admin.create_log(name)
    read: set[str] = set()
    get = dashboard.store.get

    async def counted(path: str) -> tuple[bytes, int]:
        if path.startswith(f"{ROOT}/logs/"):
            read.add(path.removeprefix(f"{ROOT}/logs/").partition("/")[0])
        return await get(path)

    monkeypatch.setattr(dashboard.store, "get", counted)
    after, pages = "", []
    while after is not None:
        read.clear()
        page = await dashboard.get(f"/api/v1/logs?limit=2&after={after}")
        pages.append([row["log"] for row in page["logs"]])
        assert read == set(pages[-1])
        after = page["after"]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.thorough
async def test_ledgers_are_listed_by_what_they_are(dashboard: Shown) -> None:
    writer = await dashboard.client.create_ledger(custom_metadata={"colour": b"red"})
    named = writer.ensemble[0]
    await writer.close()
    for query, there in (
        ("custom=colour=red", True),
        ("custom=colour=blue", False),
        (f"bookie={named}&custom=colour=red", True),
        ("bookie=none", False),
        (f"since_ms={writer.metadata.created_ms}&custom=colour=red", True),
        (f"since_ms={writer.metadata.created_ms + 1}&custom=colour=red", False),
    ):
        page = await dashboard.get(f"/api/v1/ledgers?{query}")
        assert [row["ledger_id"] for row in page["ledgers"]] == [writer.ledger_id] * there, query
    assert "KEY=VALUE" in (await dashboard.get("/api/v1/ledgers?custom=red", 400))["error"]


@pytest.mark.thorough
async def test_what_makes_no_sense_is_refused_with_a_reason(dashboard: Shown) -> None:
    for path, status, why in (
        ("/api/v1/ledgers/77", 404, "there is no such ledger"),
        ("/api/v1/ledgers/x", 400, "ledger_id is a number"),
        ("/api/v1/ledgers?after=-2", 400, "after is from 0"),
        (f"/api/v1/ledgers?after={1 << 63}", 400, "after is from 0"),
        ("/api/v1/ledgers?limit=x", 400, "limit is a number"),
        ("/api/v1/logs/none", 404, "none"),
        ("/api/v1/logs/a%40b", 400, "can't be the name of a log"),
        ("/api/v1/nothing", 404, "Not Found"),
        ("/nothing", 404, "Not Found"),
    ):
        assert why in (await dashboard.get(path, status))["error"]


# --- who may ask ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_other_sites_are_refused(dashboard: Shown) -> None:
    for headers in (
        {"Host": "attacker.example"},
        {"Host": "attacker.example:8080"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ):
        answer = await dashboard.get("/api/v1/overview", 403, **headers)
        assert list(answer) == ["error"]
        await dashboard.act("drain", "a", 403, JSON | headers)
    assert not await dashboard.draining()


@pytest.mark.thorough
async def test_its_own_names_are_taken(dashboard: Shown) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]:80", "LOCALHOST:8080"):
        await dashboard.get("/api/v1/overview", Host=host)


@pytest.mark.thorough
async def test_a_link_from_elsewhere_opens_the_page_which_nobody_frames(dashboard: Shown) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for path in ("/", "/app.js", "/style.css"):
        async with dashboard.session.get(dashboard.where + path, headers=headers if path == "/" else {}) as response:
            assert response.status == 200
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in response.headers
            text = await response.text()
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in text
            assert "innerHTML" not in text
    async with dashboard.session.get(dashboard.where + "/app.js", headers=headers) as response:
        assert response.status == 403


# --- actions --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_without_permission_there_are_no_actions(tmp_path: Path) -> None:
    async with shown(tmp_path, actions=False) as one:
        assert (await one.get("/api/v1/overview"))["actions"] == []
        assert "--allow-actions" in (await one.act("drain", "a", 403))["error"]
        assert "--allow-actions" in (await one.act("drain", "a", 403, JSON | {"Authorization": "Bearer "}))["error"]


@pytest.mark.thorough
async def test_a_wrong_token_is_refused(dashboard: Shown) -> None:
    for given in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN, "Bearer é"):
        answer = await dashboard.act("drain", "a", 401, JSON | {"Authorization": given})
        assert TOKEN not in json.dumps(answer)
    assert not await dashboard.draining()


@pytest.mark.thorough
async def test_actions_do_what_they_say_and_are_told(dashboard: Shown) -> None:
    assert (await dashboard.act("drain", "b"))["text"] == "bookie b begins to drain"
    assert await dashboard.draining() == {"b"}
    assert (await dashboard.act("cancel-drain", "b"))["text"] == "the draining of bookie b was ended"
    assert (await dashboard.act("cancel-drain", "b"))["text"] == "bookie b wasn't draining"
    writer = await dashboard.client.create_ledger()
    await writer.append(b"entry")
    assert (await dashboard.act("recover", writer.ledger_id))[
        "text"
    ] == f"ledger {writer.ledger_id} was closed at entry 0"
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(b"another")
    assert "was started on bookie a" in (await dashboard.act("scrub", "a"))["text"]
    assert "garbage collection" in (await dashboard.act("gc", "c"))["text"]
    told = [event["text"] for event in (await dashboard.get("/api/v1/events"))["events"] if event["kind"] == "action"]
    assert len(told) == 6


@pytest.mark.thorough
async def test_actions_that_make_no_sense_are_refused(dashboard: Shown) -> None:
    assert "no ledger id" in (await dashboard.act("recover", "x", 400))["error"]
    assert "no such ledger" in (await dashboard.act("recover", 99, 404))["error"]
    assert "no such bookie" in (await dashboard.act("scrub", "z", 503))["error"]
    await dashboard.act("drain", "z", 503)
    assert "there is no action" in (await dashboard.act("explode", "a", 404))["error"]
    assert (
        "application/json" in (await dashboard.act("drain", "a", 415, JSON | {"Content-Type": "text/plain"}))["error"]
    )
    await dashboard.act("drain", "a" * BODY_BYTES_MAX, 413)
    assert not await dashboard.draining()


@pytest.mark.thorough
async def test_events_are_bounded(dashboard: Shown) -> None:
    for number in range(EVENTS_MAX + 5):
        dashboard.watch.tell("action", str(number))
    events = (await dashboard.get("/api/v1/events"))["events"]
    assert [events[0]["text"], events[-1]["text"], len(events)] == [str(EVENTS_MAX + 4), "5", EVENTS_MAX]
    assert [event["number"] for event in events] == sorted((event["number"] for event in events), reverse=True)


# --- when the cluster fails -----------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_bookie_that_is_gone_is_seen_and_told(dashboard: Shown) -> None:
    await dashboard.cluster.node("b").stop()
    await dashboard.watch.look()
    bookies = (await dashboard.get("/api/v1/bookies"))["bookies"]
    assert [(b["bookie_id"], b["state"]) for b in bookies] == [("a", "writable"), ("b", "absent"), ("c", "writable")]
    assert "bookie b has gone" in [event["text"] for event in (await dashboard.get("/api/v1/events"))["events"]]
    assert (await dashboard.get("/api/v1/health"))["status"] == "warning"


@pytest.mark.thorough
async def test_acts_of_the_audit_trail_are_events_once(dashboard: Shown) -> None:
    there = replication_context(dashboard.client).cluster
    runtime = there.store.runtime
    trail = AuditTrail(there.store, there.root, runtime, client_settings(), Actor("alice", "ops-1, pid 7"))
    async with trail.recorded(*PROTECTED):
        pass
    for _ in range(2):
        await dashboard.watch.look()
    events = [event["text"] for event in (await dashboard.get("/api/v1/events"))["events"] if event["kind"] == "audit"]
    assert events == ["protect /ledgers, by alice on ops-1, pid 7"]
    (act,) = (await dashboard.get("/api/v1/audit"))["acts"]
    assert (act["act"], act["user"], act["done"]) == ("protect", "alice", True)
    assert (await dashboard.get(f"/api/v1/audit?since_ms={act['time_ms'] + 1}"))["acts"] == []


@pytest.mark.thorough
async def test_a_look_that_meets_a_defect_is_not_the_last_one(
    dashboard: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the page would show for ever how the cluster was then, and call it healthy."""
    broken, status = [True], dashboard.watch.health().status

    async def seen_or_not(*args: Any, **options: Any) -> Any:
        if broken:
            raise ValueError("nobody expected that")
        return await seen(*args, **options)

    monkeypatch.setattr(watching, "seen", seen_or_not)
    running = asyncio.create_task(dashboard.watch.run())
    await eventually(lambda: dashboard.watch.overview().error)
    assert "nobody expected that" in dashboard.watch.overview().error
    assert dashboard.watch.health().status == "unknown"
    broken.clear()
    await eventually(lambda: not dashboard.watch.overview().error)
    assert dashboard.watch.health().status == status
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.thorough
async def test_no_event_is_lost_where_the_rest_of_a_look_fails(
    dashboard: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two is away in one look, and what the other one found is told all the same."""
    there = replication_context(dashboard.client).cluster
    trail = AuditTrail(there.store, there.root, there.store.runtime, client_settings(), Actor("alice", "ops-1, pid 7"))
    writer = await dashboard.client.create_ledger()
    await writer.append(b"entry")

    async def away(*_: object) -> Any:
        raise bkpy.MetadataUnavailableError("it is away")

    for one, name in ((dashboard.watch.trail, "names"), (dashboard.watch.following, "look")):
        if name == "names":
            await dashboard.client.recover_ledger(writer.ledger_id)
        else:
            async with trail.recorded(*PROTECTED):
                pass
        with monkeypatch.context() as patched:
            patched.setattr(one, name, away)
            await dashboard.watch.look()
        await dashboard.watch.look()
    events = (await dashboard.get("/api/v1/events"))["events"]
    assert [event["kind"] for event in events if event["kind"] in ("ledger", "audit")] == ["audit", "ledger"]


@pytest.mark.thorough
async def test_without_metadata_the_page_says_so_and_comes_back(dashboard: Shown) -> None:
    dashboard.store.suspend()
    await dashboard.watch.look()
    overview = await dashboard.get("/api/v1/overview")
    assert overview["health"]["status"] == "unknown"
    assert overview["error"]
    dashboard.store.resume()
    await dashboard.watch.look()
    overview = await dashboard.get("/api/v1/overview")
    assert (overview["error"], overview["health"]["bookies"]) == ("", 3)
    texts = [event["text"] for event in (await dashboard.get("/api/v1/events"))["events"]]
    assert texts[0] == "the cluster can be seen again"
    assert texts[1].startswith("the cluster can't be seen: ")
