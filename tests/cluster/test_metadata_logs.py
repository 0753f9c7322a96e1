"""Named logs in both stores: what one transaction refuses, what another log's name can't do, how long a list may be."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.cluster.metadata_harness import Harness, harness

from bkpy.config.client import ClientSettings
from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError, ConsumerLockedError, NoSuchLogError, TruncatedError
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.logs.catalog import HeldBy, LogStore, Taken
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.maintenance import LOG_NAME, LOG_UID, LogMaintenance, Swept
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.log.log_list import LogList, Segment

__all__ = ["harness"]  # fixture

UIDS = "1" * 32, "2" * 32


class Logs:
    """One client's."""

    async def open(self, harness: Harness, **settings: int) -> Logs:
        store = await harness.open()
        self.store = store
        self.catalog = LedgerCatalog(store, harness.root, LONG_HIERARCHICAL, harness.runtime, ClientSettings())
        shared = MetadataSettings().model_copy(update=settings)
        self.logs = LogStore(store, harness.root, LONG_HIERARCHICAL, harness.runtime, shared)
        self.maintenance = LogMaintenance(self.logs, self.catalog)
        return self

    async def ledger(self, uid: str) -> Created:
        created = await self.catalog.create(
            lambda ledger_id: LedgerMetadata(
                ledger_id=ledger_id,
                state=LedgerState.OPEN,
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                digest="crc32c",
                ledger_key=bytes(32),
                fragments=(Fragment(0, ("a",)),),
                owner_token=self.logs.new_token(),
                custom_metadata={LOG_NAME: b"orders", LOG_UID: uid.encode()},
            )
        )
        assert isinstance(created, Created)
        return created


async def unneeded(ledger_id: int) -> None:
    """Fences a ledger that nobody writes."""


def a_list(uid: str) -> LogList:
    return LogList(uid, 1, 1, 1, "crc32c", bytes(32))


@pytest.mark.scenario(66)
async def test_a_log_in_the_store(harness: Harness) -> None:
    await init_cluster(await harness.open(), harness.root)
    one, other = await Logs().open(harness), await Logs().open(harness)
    assert await one.logs.create("orders", a_list(UIDS[0])) == Done(0)
    assert isinstance(await other.logs.create("orders", a_list(UIDS[1])), Exists)

    # A segment is added only with a ledger that is as it was made.
    first, second, orphan = [await one.ledger(UIDS[0]) for _ in range(3)]
    ids = [created.metadata.ledger_id for created in (first, second, orphan)]
    log_list, version = await one.logs.read("orders", fresh=True)
    segments = Segment(ids[0], 0, 0).seal(10, 100, 0), Segment(ids[1], 10, 0)
    wanted = dataclasses.replace(log_list, segments=segments)
    stale = one.logs.ledger_check(ids[1], second.version + 1)
    assert await one.logs.write("orders", wanted, version, stale) == Missing(stale.path, 2)
    assert await one.logs.write("orders", wanted, version, one.logs.ledger_check(ids[1], second.version)) == Done(1)
    assert await other.logs.write("orders", log_list, version) == Changed()

    # A consumer and a truncation.
    consumers = LogConsumers(other.logs, "orders", UIDS[0])
    state = await consumers.register("billing", 3)
    with pytest.raises(ConfigError, match="billing"):
        await one.maintenance.truncate("orders", 10)
    unaware = (await consumers.registered()).check
    state = await consumers.commit("billing", 2, state)
    log_list, version = await one.logs.read("orders", fresh=True)
    outcome = await one.logs.write_anyway("orders", log_list.truncated(10), version, unaware)
    assert outcome == Missing(unaware.path, 2)
    state = await consumers.commit("billing", 10, state)
    assert (await one.maintenance.truncate("orders", 10)).segments == segments[1:]
    with pytest.raises(TruncatedError):
        await consumers.commit("billing", 9, state)

    # What the list names is nobody else's to delete, and what it doesn't name is.
    with pytest.raises(ConfigError, match="a part of log orders"):
        await other.maintenance.delete_ledger(second.metadata)
    assert await other.maintenance.sweep(second.metadata, 0) is Swept.KEPT
    assert await other.maintenance.sweep(orphan.metadata, 0) is Swept.DELETED
    assert [ledger_id async for ledger_id in other.catalog.ids()] == [ids[1]]

    # The lease goes with its session.
    before_ms = one.logs.now_ms()
    assert await one.logs.take_lease("orders", UIDS[0], "t", "host") == Taken()
    after_ms = one.logs.now_ms()
    held = await other.logs.take_lease("orders", UIDS[0], "s", "another")
    assert isinstance(held, HeldBy)
    assert held.label == "host"
    assert before_ms <= held.since_ms <= after_ms
    await one.store.close()
    assert await other.logs.take_lease("orders", UIDS[0], "s", "another") == Taken()

    # Another log of the name is another log.
    old, old_version = await other.logs.read("orders", fresh=True)
    await other.maintenance.delete("orders", unneeded)
    with pytest.raises(NoSuchLogError):
        await consumers.registered()
    assert [ledger_id async for ledger_id in other.catalog.ids()] == []
    left = await other.ledger(UIDS[0])
    assert await other.logs.create("orders", a_list(UIDS[1])) == Done(0)
    new, new_version = await other.logs.read("orders")
    while new_version < old_version:
        assert await other.logs.write("orders", new, new_version) == Done(new_version + 1)
        new_version += 1
    assert isinstance(await other.logs.write("orders", old, old_version), Missing)
    assert await other.maintenance.sweep(left.metadata, 1e9) is Swept.DELETED  # its log was deleted
    stray = await other.ledger("3" * 32)
    assert await other.maintenance.sweep(stray.metadata, 0) is Swept.KEPT_FOR_LOST_LIST
    deletions = LogDeletions(other.logs)
    assert [(note.uid, note.name) for note in await deletions.older_than(0)] == [(UIDS[0], "orders")]
    assert await deletions.older_than(1e6) == []
    await deletions.forget(UIDS[0])
    assert await deletions.older_than(0) == []
    assert await other.maintenance.delete_ledger(left.metadata) == Missing(
        other.catalog.path_of(left.metadata.ledger_id)
    )


async def test_the_longest_list_that_is_let_through_is_stored(harness: Harness) -> None:
    await init_cluster(await harness.open(), harness.root)
    bound = max(
        limit.le for limit in MetadataSettings.model_fields["log_write_bytes_max"].metadata if hasattr(limit, "le")
    )
    of = await Logs().open(harness, log_write_bytes_max=bound)
    assert await of.logs.create("orders", a_list(UIDS[0])) == Done(0)
    log_list, version = await of.logs.read("orders")
    filling = dataclasses.replace(log_list, writer_label="x" * (bound - len(log_list.encode())))
    assert len(filling.encode()) == bound
    assert await of.logs.write("orders", filling, version) == Done(1)
    assert (await of.logs.read("orders"))[0].writer_label == filling.writer_label
    with pytest.raises(ConfigError):
        await of.logs.write("orders", dataclasses.replace(filling, writer="x"), 1)


async def test_lists_get_pages_in_either_store(harness: Harness) -> None:
    """A log that grows in pages of two, is searched, truncated and deleted."""
    await init_cluster(await harness.open(), harness.root)
    of = await Logs().open(harness, log_page_rows=2)
    assert await of.logs.create("orders", a_list(UIDS[0])) == Done(0)
    ledgers: list[int] = []
    for n in range(20):
        log_list, version = await of.logs.read("orders")
        ledgers.append((await of.ledger(UIDS[0])).metadata.ledger_id)
        segment = Segment(ledgers[-1], n * 10, n).seal(10, 180, n)
        longer = dataclasses.replace(log_list, segments=(*log_list.segments, segment))
        assert await of.logs.write("orders", longer, version) == Done(version + 1)
        assert await of.logs.write("orders", longer, version) == Changed()
    log_list, _ = await of.logs.read("orders")
    assert log_list.pages[0].level == 3
    other = await Logs().open(harness)
    found = [segment.ledger_id async for segment in other.logs.pages.segments("orders", log_list)]
    assert found == ledgers
    for ledger_id in ledgers:
        assert await other.maintenance.sweep((await of.catalog.read(ledger_id))[0], 0) is Swept.KEPT
    await other.maintenance.truncate("orders", 115)
    assert [n for n in ledgers if await of.store.exists(of.catalog.path_of(n))] == ledgers[11:]

    async def fence(_: int) -> None:
        return

    await other.maintenance.delete("orders", fence)
    assert not [n for n in ledgers if await of.store.exists(of.catalog.path_of(n))]
    assert await other.logs.names() == []


async def test_a_full_list_of_0_2_0_moves_into_pages(harness: Harness) -> None:
    await init_cluster(await harness.open(), harness.root)
    of = await Logs().open(harness)
    assert await of.logs.create("orders", a_list(UIDS[0])) == Done(0)
    log_list, _ = await of.logs.read("orders")
    segments = tuple(Segment(n, n * 10, n).seal(10, 180, n) for n in range(15_000))
    fields = json.loads(dataclasses.replace(log_list, segments=segments).encode())
    for name in ("pages", "next_page", "reclaimed", "producers"):
        del fields[name]
    former = json.dumps({**fields, "sinks": {}, "version": 1}, separators=(",", ":")).encode()
    assert 400_000 < len(former) < 768 * 1024
    await of.store.put(f"{harness.root}/logs/orders", former, 0)
    read, version = await of.logs.read("orders")
    assert read.segments == segments
    assert await of.logs.write("orders", read, version) == Done(version + 1)
    moved, _ = await of.logs.read("orders", fresh=True)
    assert len(moved.encode()) < 50_000
    assert [segment async for segment in of.logs.pages.segments("orders", moved)] == list(segments)


@pytest.mark.parametrize("ends", ["expired", "closed", "unlocked"])
async def test_a_lease_in_the_store(harness: Harness, ends: str) -> None:
    """One client has it, however replies are lost; when it has ended its commits are refused."""
    await init_cluster(await harness.open(), harness.root)
    one, other = await Logs().open(harness), await Logs().open(harness)
    assert await one.logs.create("orders", a_list(UIDS[0])) == Done(0)
    first, second = (LogConsumers(of.logs, "orders", UIDS[0]) for of in (one, other))
    await first.register("billing", 0)
    harness.lose_reply(one.store)
    state = await first.lock("billing", "client a on host-1, pid 7")
    with pytest.raises(ConsumerLockedError, match="is leased to client a on host-1, pid 7, since"):
        await second.lock("billing", "host-2, pid 8")
    harness.lose_reply(one.store)
    state = await first.commit("billing", 0, state)
    if ends == "expired":
        await harness.expire(one.store)
    elif ends == "closed":
        await one.store.close()
    else:
        harness.lose_reply(one.store)
        await first.unlock("billing")
    if ends != "closed":
        with pytest.raises(ConsumerLockedError, match="has ended, and nobody holds it now"):
            await first.commit("billing", 0, state)
    taken = await second.lock("billing", "host-2, pid 8")
    if ends != "closed":
        with pytest.raises(ConsumerLockedError, match="has ended, and it is leased to host-2, pid 8"):
            await first.commit("billing", 0, state)
    await second.commit("billing", 0, taken)
    await other.maintenance.delete("orders", unneeded)
    with pytest.raises(NoSuchLogError):
        await second.registered()


async def test_a_consumer_that_is_leased_can_be_deleted(harness: Harness) -> None:
    await init_cluster(await harness.open(), harness.root)
    one, other = await Logs().open(harness), await Logs().open(harness)
    assert await one.logs.create("orders", a_list(UIDS[0])) == Done(0)
    first, second = (LogConsumers(of.logs, "orders", UIDS[0]) for of in (one, other))
    await first.register("billing", 0)
    state = await first.lock("billing", "host-1, pid 7")
    assert await second.delete("billing")
    with pytest.raises(ConsumerLockedError, match="nobody holds it now"):
        await first.commit("billing", 0, state)
    assert (await second.registered()).states == {}


async def test_a_commit_just_then_keeps_what_an_idle_consumer_has_not_read(harness: Harness) -> None:
    """The transaction of a truncation without the consumer checks that it has not moved."""
    await init_cluster(await harness.open(), harness.root)
    one = await Logs().open(harness)
    segments = Segment(1, 0, 0).seal(10, 100, 0), Segment(2, 10, 0)
    assert await one.logs.create("orders", dataclasses.replace(a_list(UIDS[0]), segments=segments)) == Done(0)
    consumers = LogConsumers(one.logs, "orders", UIDS[0])
    state = await consumers.register("billing", 3)
    registered = await consumers.registered()
    checks = registered.check, registered.checks["billing"]
    log_list, version = await one.logs.read("orders", fresh=True)
    await consumers.commit("billing", 4, state)
    outcome = await one.logs.write_anyway("orders", log_list.truncated(10), version, *checks)
    assert outcome == Missing(checks[1].path, 3)
