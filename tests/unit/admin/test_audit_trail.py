"""The audit trail: each act is recorded with who did it, in its transaction or before it; what is kept is bounded."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import ROOT, InProcess, runtime_here
from tests.stepping import naming, run_to
from tests.unit.replication.worker.test_ledger_repair import closed

import bkpy
from bkpy.cli.arguments import parse_since
from bkpy.client.client import open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.metadata.audit_trail import ActKind, Actor, actor_of
from bkpy.metadata.store.resolve import create_certainly
from bkpy.metadata.store.store import Create
from bkpy.runtime.process import process_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

ALICE = Actor("alice", "ops-1, pid 7", "tool", ("digest:ops",))
TRAIL = f"{ROOT}/audit-trail"


async def admin_of(cluster: InProcess, **settings: Any) -> bkpy.AdminClient:
    """An administrator whose acts are recorded as Alice's."""
    client = await open_client(cluster.tree.session(), ROOT, runtime_here(), client_settings(**settings), actor=ALICE)
    cluster.clients.append(client)
    return bkpy.AdminClient(client)


async def acts(admin: bkpy.AdminClient) -> list[tuple[str, str, bool]]:
    return [(record.act, record.subject, record.done) for record in await admin.audit_trail()]


async def test_each_act_is_recorded_with_who_did_it(five: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bkpy.audit")
    admin = await admin_of(five)
    client = admin.client
    ledger = (await closed(client, 3)).ledger_id
    log = await client.open_log("orders", create=True)
    await log.append_batch([b"a", b"b"])
    reader = await client.read_log("orders")
    await reader.consumer("billing", create=True)
    await log.close()
    assert await acts(admin) == []
    await admin.start_drain("a")
    await admin.start_drain("a")  # it drains already
    assert await admin.cancel_drain("a")
    assert await admin.delete_log_consumer("orders", "billing")
    await admin.truncate_log("orders", 1)
    await admin.set_auto_recovery(False)
    await client.delete_ledger(ledger)
    with pytest.raises(bkpy.NoSuchLedgerError):
        await client.delete_ledger(ledger)
    await client.delete_log("orders")
    found = await acts(admin)
    assert sorted(found) == sorted(
        [
            ("drain", "a", True),
            ("cancel-drain", "a", True),
            ("delete-consumer", "orders", False),
            ("truncate-log", "orders", False),
            ("re-replication", "disable", False),
            ("delete-ledger", str(ledger), True),
            ("delete-log", "orders", False),
        ]
    )
    (drained,) = [record for record in await admin.audit_trail() if record.act == "drain"]
    assert drained.actor == ALICE
    assert str(drained) == "drain a, by alice (digest:ops) on ops-1, pid 7, client tool"
    assert f"audit: {drained}" in caplog.messages
    assert await admin.audit_trail(since=drained.time_ms / 1000 + 3600) == []


async def test_a_decommissioned_bookie_is_recorded_in_the_transaction_that_removes_it(five: InProcess) -> None:
    admin = await admin_of(five)
    await five.nodes[-1].stop()
    assert (await admin.decommission("e", lost=True)).scan.clear
    assert ("decommission", "e", True) in await acts(admin)


async def test_without_an_actor_nothing_is_recorded(five: InProcess) -> None:
    admin = bkpy.AdminClient(await five.client())
    await admin.start_drain("a")
    assert await admin.audit_trail() == []


async def test_of_each_kind_the_newest_are_kept(five: InProcess) -> None:
    admin = await admin_of(five, audit_acts_max=1)
    await admin.start_drain("a")
    for _ in range(45):
        await admin.set_auto_recovery(True)
    found = await acts(admin)
    assert found.count(("drain", "a", True)) == 1
    assert len(found) <= 22
    newer = await admin_of(five, audit_acts_max=1)
    await newer.set_auto_recovery(False)
    assert sorted(await acts(newer))[-2:] == [("re-replication", "disable", False), ("re-replication", "enable", False)]


async def test_an_act_that_can_not_be_recorded_does_not_begin(five: InProcess) -> None:
    admin = await admin_of(five)
    log = await admin.client.open_log("orders", create=True)
    await log.close()
    await admin.set_auto_recovery(True)  # the trail's folder is there
    store = cluster_of(admin.client).store
    real = store.multi

    async def refusing(operations: Any) -> Any:
        if any(TRAIL in operation.path for operation in operations):
            raise bkpy.MetadataUnavailableError("the store is away")
        return await real(operations)

    store.multi = refusing  # type: ignore[method-assign]
    with pytest.raises(bkpy.MetadataUnavailableError, match="the store is away"):
        await admin.client.delete_log("orders")
    store.multi = real  # type: ignore[method-assign]
    assert [name async for name in admin.client.list_logs()] == ["orders"]


@pytest.mark.parametrize("late", [False, True])
async def test_an_act_that_is_cancelled_at_any_step_is_recorded_if_it_was_done(five: InProcess, late: bool) -> None:
    """Each time by an administrator of its own, whose first act it is: so it looks after the trail, too."""
    steady = bkpy.AdminClient(await five.client())
    client, directory = steady.client, replication_context(steady.client).directory

    async def cancelled(at: int, act: Callable[[bkpy.AdminClient], Coroutine[Any, Any, Any]]) -> bool:
        admin = await admin_of(five)
        with naming("the act", at, late):
            reached = await run_to(act(admin), at, late, None)
        await five.clients.pop().close()  # what it still did has ended
        return reached

    async def recorded(act: str, what: str) -> int:
        trail = await steady.audit_trail()
        return [record.act for record in trail if what in (record.subject, record.details)].count(act)

    async def drain(at: int) -> bool:
        await steady.cancel_drain("a")
        before = await recorded("drain", "a")
        reached = await cancelled(at, lambda admin: admin.start_drain("a"))
        await directory.refresh()
        assert ("a" in directory.draining) == (await recorded("drain", "a") > before), at
        return reached

    async def delete_ledger(at: int) -> bool:
        ledger = (await closed(client, 1)).ledger_id
        reached = await cancelled(at, lambda admin: admin.client.delete_ledger(ledger))
        there = {one async for one in client.list_ledgers()}
        assert (ledger not in there) == (await recorded("delete-ledger", str(ledger)) == 1), at
        return reached

    async def delete_log(at: int) -> bool:
        name = f"log-{at}"
        await (await client.open_log(name, create=True)).close()
        reached = await cancelled(at, lambda admin: admin.client.delete_log(name))
        assert name in {one async for one in client.list_logs()} or await recorded("delete-log", name) == 1, at
        return reached

    async def delete_consumer(at: int) -> bool:
        name = f"consumer-{at}"
        await log.consumer(name, create=True)
        reached = await cancelled(at, lambda admin: admin.delete_log_consumer("orders", name))
        there = await steady.log_consumers("orders")
        assert name in there or await recorded("delete-consumer", name) == 1, at
        return reached

    async with await client.open_log("orders", create=True) as log:
        for act in (drain, delete_ledger, delete_log, delete_consumer):
            steps = 0
            while await act(steps):
                steps += 1
            assert steps > 5


async def test_a_record_that_is_damaged_is_shown_by_its_name(five: InProcess) -> None:
    admin = await admin_of(five)
    await admin.start_drain("a")
    store = cluster_of(admin.client).store
    for name, data in (
        ("000000000005000-delete-log-0011223344556677", b"rubbish"),
        ("000000000006000-drain-0011223344556677", b'{"version": 9}'),
        ("x", b""),
    ):
        await create_certainly(store, Create(f"{TRAIL}/{name}", data), attempts_max=1)
    first, second, *_ = await admin.audit_trail()
    assert (first.time_ms, first.act, first.done) == (5000, "delete-log", False)
    assert first.details.startswith("unreadable")
    assert "version 9" in second.details


def test_the_actor_names_credentials_and_no_secret(tmp_path: Path) -> None:
    settings = client_settings(zookeeper_auth="ops:secret", tls_ca_file=str(tmp_path / "none"))
    actor = actor_of(settings, process_runtime())
    assert actor.identities == ("digest:ops",)
    assert "secret" not in repr(actor)


@pytest.mark.parametrize(
    ("text", "expected"), [("2026-03-01T09:00", 1772355600.0), ("2026-03-01T09:00+01:00", 1772352000.0)]
)
def test_a_time_since_when(text: str, expected: float) -> None:
    assert parse_since(text) == expected


def test_act_names_are_those_of_their_nodes() -> None:
    assert all(not act.startswith("-") and not act.endswith("-") for act in ActKind)
