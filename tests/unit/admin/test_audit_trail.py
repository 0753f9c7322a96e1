"""The audit trail: each act is recorded with who did it, in its transaction or before it; what is kept is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.hooks import cluster_of
from tests.in_process import ROOT, InProcess, rewrite, runtime_here
from tests.stepping import naming, run_to
from tests.unit.log.test_takeovers import AWAY, FAST, REPLY_LOST, REQUEST_LOST, Faulty
from tests.unit.replication.worker.test_ledger_repair import closed, lose

import bkpy
from bkpy.cli.arguments import parse_since
from bkpy.client.client import log_parts, open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.metadata.audit_trail import ActKind, Actor, actor_of
from bkpy.metadata.store.resolve import create_certainly
from bkpy.metadata.store.store import Create
from bkpy.protocol.ledger.ledger_metadata import LedgerState
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


async def test_a_ledger_is_not_said_to_be_missing_because_its_act_cannot_be_recorded(five: InProcess) -> None:
    """Somebody has removed the trail with other means."""
    admin = await admin_of(five)
    client = admin.client
    first, ledger = [(await closed(client, 3)).ledger_id for _ in range(2)]
    await client.delete_ledger(first)
    session = five.tree.session()
    for name in await session.children(TRAIL):
        await session.delete(f"{TRAIL}/{name}")
    await session.delete(TRAIL)
    with pytest.raises(bkpy.MetadataConflictError, match="audit") as caught:
        await client.delete_ledger(ledger)
    assert not caught.value.outcome_unknown
    assert (await client.ledger_metadata(ledger)).last_entry == 2


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
            ("delete-consumer", "orders", True),
            ("truncate-log", "orders", True),
            ("re-replication", "disable", True),
            ("delete-ledger", str(ledger), True),
            ("delete-log", "orders", True),
        ]
    )
    (drained,) = [record for record in await admin.audit_trail() if record.act == "drain"]
    assert drained.actor == ALICE
    assert str(drained) == "drain a, by alice (digest:ops) on ops-1, pid 7, client tool"
    assert f"audit: {dataclasses.replace(drained, done=False)}" in caplog.messages
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
    assert sorted(await acts(newer))[-2:] == [("re-replication", "disable", True), ("re-replication", "enable", True)]


async def test_acts_of_a_machine_whose_clock_was_ahead_displace_no_later_ones(five: InProcess) -> None:
    here = runtime_here()

    class Ahead:
        """A day."""

        monotonic = here.clock.monotonic

        def time(self) -> float:
            return here.clock.time() + 86400

    settings = client_settings(audit_acts_max=2)
    ahead = dataclasses.replace(here, clock=Ahead())
    client = await open_client(five.tree.session(), ROOT, ahead, settings, actor=ALICE)
    five.clients.append(client)
    wrong = bkpy.AdminClient(client)
    for enabled in (True, True, False):
        await wrong.set_auto_recovery(enabled)
        await asyncio.sleep(1)
    for enabled in (True, False, True):
        await (await admin_of(five, audit_acts_max=2)).set_auto_recovery(enabled)
        await asyncio.sleep(1)
    found = await bkpy.AdminClient(client).audit_trail()
    right = [record for record in found if record.time_ms < (here.clock.time() + 3600) * 1000]
    assert [record.subject for record in right] == ["enable", "disable", "enable"]
    assert len(found) == 3  # the last act has tidied before it


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


class Acting:
    """Acts in trouble, each time by an administrator of its own: so it looks after the trail, too.

    `steady` looks at what became of it. An act is prepared, tried at one step after the other, and then there is
    exactly one record if it was done; one that says so is right.
    """

    def __init__(self, cluster: InProcess, steady: bkpy.AdminClient) -> None:
        self.cluster = cluster
        self.steady = steady
        self.client = steady.client
        self.directory = replication_context(steady.client).directory

    async def troubled(
        self, at: int, trouble: str, act: Callable[[bkpy.AdminClient], Coroutine[Any, Any, Any]]
    ) -> bool:
        """Whether the trouble came."""
        session = Faulty(self.cluster)
        settings = client_settings(**FAST)
        client = await open_client(session, ROOT, runtime_here(), settings, actor=ALICE)
        admin = bkpy.AdminClient(client)
        try:
            if trouble in (REPLY_LOST, REQUEST_LOST, AWAY):
                session.count(at + 1, trouble)
                with contextlib.suppress(bkpy.BookKeeperError):
                    await act(admin)
                reached = session.calls > at
                session.calls = -1
            else:
                late = trouble == "cancelled late"
                with naming("the act", at, late):
                    reached = await run_to(act(admin), at, late, session.expire if trouble == "session lost" else None)
        finally:
            await client.close()  # what it still did has ended
        return reached

    async def records(self, act: str, what: str) -> list[bool]:
        trail = await self.steady.audit_trail()
        return [one.done for one in trail if one.act == act and what in (one.subject, one.details)]

    async def check(self, at: int, act: str, what: str, changed: bool, reached: bool, before: int = 0) -> bool:
        found = (await self.records(act, what))[before:]
        case = act, at, found, changed
        assert len(found) == 1 or (not found and not changed), case
        assert changed or True not in found, case
        if act in ("drain", "cancel-drain", "delete-ledger"):  # in one transaction
            assert found == ([True] if changed else []), case
        assert reached or found == [True], case
        return reached

    # --- acts: each returns whether the trouble came ------------------------------------------------------------------

    async def drain(self, at: int, trouble: str) -> bool:
        await self.steady.cancel_drain("a")
        before = len(await self.records("drain", "a"))
        reached = await self.troubled(at, trouble, lambda admin: admin.start_drain("a"))
        await self.directory.refresh()
        return await self.check(at, "drain", "a", "a" in self.directory.draining, reached, before)

    async def cancel_drain(self, at: int, trouble: str) -> bool:
        await self.steady.start_drain("a")
        before = len(await self.records("cancel-drain", "a"))
        reached = await self.troubled(at, trouble, lambda admin: admin.cancel_drain("a"))
        await self.directory.refresh()
        return await self.check(at, "cancel-drain", "a", "a" not in self.directory.draining, reached, before)

    async def delete_ledger(self, at: int, trouble: str) -> bool:
        ledger = (await closed(self.client, 1)).ledger_id
        reached = await self.troubled(at, trouble, lambda admin: admin.client.delete_ledger(ledger))
        there = {one async for one in self.client.list_ledgers()}
        return await self.check(at, "delete-ledger", str(ledger), ledger not in there, reached)

    async def delete_log(self, at: int, trouble: str) -> bool:
        name = f"log-{trouble[:3]}-{at}"
        await (await self.client.open_log(name, create=True)).close()
        reached = await self.troubled(at, trouble, lambda admin: admin.client.delete_log(name))
        there = {one async for one in self.client.list_logs()}
        return await self.check(at, "delete-log", name, name not in there, reached)

    async def truncate_log(self, at: int, trouble: str) -> bool:
        name = f"cut-{trouble[:3]}-{at}"
        async with await self.client.open_log(name, create=True) as log:
            await log.append_batch([b"a", b"b"])
        reached = await self.troubled(at, trouble, lambda admin: admin.truncate_log(name, 1))
        first = (await log_parts(self.client).logs.read(name, fresh=True))[0].first_position
        return await self.check(at, "truncate-log", name, first == 1, reached)

    async def delete_consumer(self, at: int, trouble: str) -> bool:
        name = f"consumer-{trouble[:3]}-{at}"
        async with await self.client.open_log("consumed", create=True) as log:
            await log.consumer(name, create=True)
        reached = await self.troubled(at, trouble, lambda admin: admin.delete_log_consumer("consumed", name))
        there = await self.steady.log_consumers("consumed")
        return await self.check(at, "delete-consumer", name, name not in there, reached)

    async def forget_producer(self, at: int, trouble: str) -> bool:
        name = f"producer-{trouble[:3]}-{at}"
        async with await self.client.open_log("produced", create=True, producer=name) as log:
            await log.append(b"a", sequence=0)
        reached = await self.troubled(at, trouble, lambda admin: admin.delete_log_producer("produced", name))
        there = await self.steady.log_producers("produced")
        return await self.check(at, "forget-producer", name, name not in there.known, reached)

    async def re_replication(self, at: int, trouble: str) -> bool:
        await self.steady.set_auto_recovery(True)
        before = len(await self.records("re-replication", "disable"))
        reached = await self.troubled(at, trouble, lambda admin: admin.set_auto_recovery(False))
        changed = not (await self.steady.replication_status())["enabled"]
        return await self.check(at, "re-replication", "disable", changed, reached, before)

    async def accept_loss(self, at: int, trouble: str) -> bool:
        writer = await self.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"a")
        ledger = writer.ledger_id
        reached = await self.troubled(at, trouble, lambda admin: admin.accept_loss(ledger, 0))
        changed = (await self.client.ledger_metadata(ledger)).state is LedgerState.CLOSED
        return await self.check(at, "accept-loss", str(ledger), changed, reached)

    async def recover_bookie(self, at: int, trouble: str) -> bool:
        ledger = (await closed(self.client, 1, ensemble_size=2, write_quorum=2, ack_quorum=2)).ledger_id
        (fragment,) = (await self.client.ledger_metadata(ledger)).fragments
        bookies = fragment.bookies[0], "e"
        await rewrite(self.client, ledger, fragments=(dataclasses.replace(fragment, bookies=bookies),))
        before = len(await self.records("recover-bookie", "e"))
        reached = await self.troubled(at, trouble, lambda admin: admin.recover_bookie("e"))
        named = any("e" in one.bookies for one in (await self.client.ledger_metadata(ledger)).fragments)
        await self.client.delete_ledger(ledger)
        return await self.check(at, "recover-bookie", "e", not named, reached, before)


TROUBLES = (
    "cancelled late",
    REPLY_LOST,
    *(pytest.param(it, marks=pytest.mark.exhaustive) for it in ("cancelled", "session lost", REQUEST_LOST, AWAY)),
)
ACTS = (
    "drain",
    "cancel_drain",
    "delete_ledger",
    "delete_log",
    "truncate_log",
    "delete_consumer",
    "forget_producer",
    "re_replication",
    "accept_loss",
    pytest.param("recover_bookie", marks=pytest.mark.exhaustive),
)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("act", ACTS)
async def test_an_act_in_trouble_at_any_step_has_one_record_if_it_was_done(
    five: InProcess, act: str, trouble: str
) -> None:
    client = await five.client()
    await lose(five, client, "e")
    acting, steps = Acting(five, bkpy.AdminClient(client)), 0
    while await getattr(acting, act)(steps, trouble):
        steps += stride()
    assert steps > 3


async def test_the_end_of_a_draining_of_an_older_version_is_recorded_with_it(five: InProcess) -> None:
    admin = await admin_of(five)
    store = cluster_of(admin.client).store
    await admin.start_drain("b")  # makes the folder
    await create_certainly(store, Create(f"{ROOT}/underreplication/draining/a", b""), attempts_max=1)
    assert await admin.cancel_drain("a")
    assert ("cancel-drain", "a", True) in await acts(admin)


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
