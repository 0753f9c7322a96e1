"""The lists of named logs and their leases in the store: what is written, and what is certain of it."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, OpeningStep, Somebody, Troubled

from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError, MetadataUnavailableError, NoSuchLogError
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.logs.catalog import HeldBy, LogStore, Taken
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.log.log_list import LogList, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.metadata.store.memory import MemorySession, MemoryStore

ROOT = "/ledgers"
LIST = f"{ROOT}/logs/orders"
SETTINGS = MetadataSettings(metadata_write_attempts_max=2, metadata_retry_pause_s=0.001)


def on(store: MemorySession, **settings: Any) -> LogStore:
    return LogStore(store, ROOT, LONG_HIERARCHICAL, runtime_here(), SETTINGS.model_copy(update=settings))


def opened(tree: MemoryStore, script: Iterable[str | OpeningStep | None] = (), **settings: Any) -> LogStore:
    return on(Troubled(tree, script), **settings)


def a_list(uid: str = "u1", **fields: Any) -> LogList:
    return LogList(uid, 3, 3, 2, "crc32c", bytes(16), **fields)


async def made(tree: MemoryStore, uid: str = "u1") -> tuple[LogList, int]:
    assert await opened(tree).create("orders", a_list(uid)) == Done(0)
    return await opened(tree).read("orders", fresh=True)


def removed(tree: MemoryStore, uid: str = "u1") -> None:
    for node in (f"{LIST}/{uid}/consumers", f"{LIST}/{uid}", LIST):
        tree.apply(Delete(node), 0)


# --- lists ------------------------------------------------------------------------------------------------------


async def test_a_log_is_made_read_and_written(tree: MemoryStore) -> None:
    logs = opened(tree)
    with pytest.raises(NoSuchLogError, match="there is no log orders"):
        await logs.read("orders")
    assert await logs.names() == []
    log_list, version = await made(tree)
    assert version == 0
    assert log_list.write_token
    assert dataclasses.replace(log_list, write_token="") == a_list()
    assert isinstance(await logs.create("orders", a_list("u2")), Exists)
    assert await logs.create("bills", a_list("u3")) == Done(0)
    assert await logs.names() == ["bills", "orders"]
    changed = dataclasses.replace(log_list, segments=(Segment(7, 0, 5),))
    assert await logs.write("orders", changed, 0) == Done(1)
    found, version = await logs.read("orders")
    assert version == 1
    assert found.segments == changed.segments
    assert found.write_token not in ("", log_list.write_token)


@pytest.mark.parametrize("name", ["", "a/b", ".."])
async def test_a_name_that_is_none_is_refused(tree: MemoryStore, name: str) -> None:
    with pytest.raises(ConfigError):
        await opened(tree).create(name, a_list())
    with pytest.raises(ConfigError):
        await opened(tree).read(name)


async def test_a_log_that_is_being_deleted_is_not_there(tree: MemoryStore) -> None:
    log_list, version = await made(tree)
    logs = opened(tree)
    gone = dataclasses.replace(log_list, deleted=True)
    assert isinstance(await logs.write("orders", gone, version), Done)
    with pytest.raises(NoSuchLogError, match="log orders has been deleted"):
        await logs.read("orders")
    found, _ = await logs.read("orders", include_deleted=True)
    assert found.deleted
    assert isinstance(await logs.create("orders", a_list("u2")), Exists)


async def test_a_write_replaces_what_was_read_and_nothing_else(tree: MemoryStore) -> None:
    log_list, version = await made(tree)
    logs = opened(tree)
    assert await logs.write("orders", log_list, version) == Done(1)
    assert await logs.write("orders", log_list, version) == Changed()
    removed(tree)
    assert await logs.write("orders", log_list, 1) == Missing(LIST)


async def test_a_write_that_was_meant_for_another_log_of_that_name_is_refused(tree: MemoryStore) -> None:
    log_list, version = await made(tree, "u1")
    removed(tree)
    other, same_version = await made(tree, "u2")
    assert version == same_version
    assert await opened(tree).write("orders", log_list, version) == Missing(LIST)
    assert (await opened(tree).read("orders"))[0] == other


async def test_a_segment_is_added_only_while_its_ledger_is_as_it_was_read(tree: MemoryStore) -> None:
    log_list, version = await made(tree)
    logs = opened(tree)
    check = logs.ledger_check(7, 0)
    for node in ("/ledgers/000", "/ledgers/000/0000", "/ledgers/000/0000/0000", "/ledgers/000/0000/0000/0000"):
        tree.apply(Create(node, b""), 0)
    tree.apply(Create(check.path, b"ledger"), 0)
    tree.apply(Put(check.path, b"later", 0), 0)
    assert await logs.write("orders", log_list, version, check) == Missing(check.path, 2)
    assert await logs.write("orders", log_list, version, logs.ledger_check(7, 1)) == Done(1)
    tree.apply(Delete(check.path), 0)
    assert await logs.write("orders", log_list, 1, logs.ledger_check(7, 1)) == Missing(check.path, 2)


async def test_others_may_check_the_list(tree: MemoryStore) -> None:
    await made(tree)
    logs = opened(tree)
    assert logs.list_check("orders", 0).path == LIST


async def test_a_list_that_is_too_long_is_refused_in_time(tree: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    log_list, version = await made(tree)
    longer = dataclasses.replace(
        log_list, segments=tuple(Segment(ledger_id, ledger_id, 0).seal(1, 1, 0) for ledger_id in range(30))
    )
    size = len(dataclasses.replace(longer, write_token="0" * 32).encode())
    with pytest.raises(ConfigError, match=f"has {size} bytes, more than the limit of {size - 1}: it has 0 producers"):
        await opened(tree, log_write_bytes_max=size - 1).write("orders", longer, version)
    assert (await opened(tree).read("orders"))[1] == version
    with caplog.at_level(logging.WARNING, "bkpy.metadata.logs.catalog"):
        assert await opened(tree, log_write_bytes_max=size * 2).write("orders", longer, version) == Done(1)
        assert not caplog.messages
        assert await opened(tree, log_write_bytes_max=size).write("orders", longer, 1) == Done(2)
        assert f"near the limit of {size}" in caplog.text
    # What makes it shorter is what it needs then.
    assert await opened(tree, log_write_bytes_max=10).write_anyway("orders", longer.truncated(5), 2) == Done(3)


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_lost_request_or_reply_changes_nothing(tree: MemoryStore, trouble: str) -> None:
    assert await opened(tree, [None, None, None, trouble]).create("first", a_list("u0")) == Done(0)
    assert await opened(tree, [trouble]).create("orders", a_list()) == Done(0)
    log_list, version = await opened(tree).read("orders")
    assert await opened(tree, [trouble]).write("orders", log_list, version) == Done(1)


async def test_what_can_not_be_told_is_said(tree: MemoryStore) -> None:
    await opened(tree).create("first", a_list("u0"))
    assert isinstance(await opened(tree, [AWAY]).create("orders", a_list()), NotDone)
    assert isinstance(await opened(tree, [REQUEST_LOST] * 2).create("orders", a_list()), Unknown)
    log_list, version = await made(tree)
    assert isinstance(await opened(tree, [AWAY]).write("orders", log_list, version), NotDone)
    assert isinstance(await opened(tree, [REQUEST_LOST] * 2).write("orders", log_list, version), Unknown)
    somebody = Somebody(tree, LIST)
    outcome = await opened(tree, [REPLY_LOST, somebody.puts(b"x")]).write("orders", log_list, version)
    assert outcome == Superseded()
    with pytest.raises(MetadataUnavailableError):
        await opened(tree, [AWAY]).read("orders")


async def test_a_write_that_was_given_its_token_can_be_told_from_others(tree: MemoryStore) -> None:
    log_list, version = await made(tree)
    logs = opened(tree, [REPLY_LOST, AWAY])
    token = logs.new_token()
    assert isinstance(await logs.write("orders", log_list, version, token=token), Unknown)
    assert (await opened(tree).read("orders"))[0].write_token == token


async def test_who_watches_hears_of_changes(tree: MemoryStore) -> None:
    log_list, version = await made(tree)
    logs = opened(tree)
    watch = logs.watch("orders")
    rounds = 0
    async for _ in watch:
        rounds += 1
        if rounds == 1:
            await logs.write("orders", log_list, version)
        else:
            watch.close()
    assert rounds == 2


# --- the lease --------------------------------------------------------------------------------------------------


def written_by(tree: MemoryStore, token: str) -> None:
    """The log has the writer with this token."""
    node = tree.node(LIST)
    log_list = dataclasses.replace(LogList.decode("orders", node.data), writer=token)
    tree.apply(Put(LIST, log_list.encode(), node.version), 0)


async def test_one_has_the_lease(tree: MemoryStore) -> None:
    await made(tree)
    a, b = opened(tree), opened(tree)
    assert await a.lease_holder("orders", "u1") is None
    assert await a.take_lease("orders", "u1", "t1", "host a") == Taken()
    assert await a.take_lease("orders", "u1", "t1", "host a") == Taken()
    held = await b.take_lease("orders", "u1", "t2", "host b")
    assert isinstance(held, HeldBy)
    assert held.label == "host a"
    assert 0 < held.since_ms <= a.now_ms()
    assert await b.lease_holder("orders", "u1") == "host a"
    await b.drop_lease("orders", "u1", "t2")
    assert await b.lease_holder("orders", "u1") == "host a"
    written_by(tree, "t2")
    assert await b.take_lease("orders", "u1", "t2", "host b", replace=True) == Taken()
    assert await a.lease_holder("orders", "u1") == "host b"
    await a.drop_lease("orders", "u1", "t1")
    await b.drop_lease("orders", "u1", "t2")
    assert await a.lease_holder("orders", "u1") is None


async def test_a_writer_that_gives_up_its_lease_takes_none_from_its_successor(tree: MemoryStore) -> None:
    """The successor replaces the lease between the look at it and the request that removes it."""
    await made(tree)
    stores = [Troubled(tree) for _ in range(4)]
    assert await on(stores[0]).take_lease("orders", "u1", "t0", "host 0") == Taken()
    for number, store in enumerate(stores[:-1]):
        follows = number + 1

        async def succeed(before: Troubled = store, number: int = follows) -> None:
            if before.calls == 2:  # the next one removes what was read
                before.before_each = None
                successor = on(stores[number])
                written_by(tree, f"t{number}")
                assert (
                    await successor.take_lease("orders", "u1", f"t{number}", f"host {number}", replace=True) == Taken()
                )

        store.before_each, store.calls = succeed, 0
        await on(store).drop_lease("orders", "u1", f"t{number}")
        assert await opened(tree).lease_holder("orders", "u1") == f"host {follows}"
    await on(stores[-1]).drop_lease("orders", "u1", "t3")
    assert await opened(tree).lease_holder("orders", "u1") is None


async def test_an_opener_that_was_overtaken_leaves_its_successor_the_lease(tree: MemoryStore) -> None:
    """The successors replace the lease before any of its requests."""
    for call in range(9):
        await made(tree)
        assert await opened(tree).take_lease("orders", "u1", "t0", "host 0") == Taken()
        written_by(tree, "t1")
        overtaken = Troubled(tree)

        async def succeed(before: Troubled = overtaken, call: int = call) -> None:
            if before.calls == call:
                before.before_each = None
                for number in (2, 3):  # by then the lease's node has the version of that which the opener has read
                    written_by(tree, f"t{number}")
                    taken = await opened(tree).take_lease("orders", "u1", f"t{number}", f"host {number}", replace=True)
                    assert taken == Taken()

        overtaken.before_each = succeed
        await on(overtaken).take_lease("orders", "u1", "t1", "host 1", replace=True)
        done = overtaken.before_each is not None
        assert await opened(tree).lease_holder("orders", "u1") == ("host 1" if done else "host 3"), call
        tree.apply(Delete(f"{LIST}/u1/lease", None), 0)
        removed(tree)
    assert done


async def test_the_lease_goes_with_the_session(tree: MemoryStore) -> None:
    await made(tree)
    store = tree.session()
    assert await on(store).take_lease("orders", "u1", "t1", "host a") == Taken()
    store.expire()
    assert await opened(tree).lease_holder("orders", "u1") is None


async def test_a_lease_needs_a_log(tree: MemoryStore) -> None:
    with pytest.raises(NoSuchLogError):
        await opened(tree).take_lease("orders", "u1", "t1", "host a")
    assert await opened(tree).lease_holder("orders", "u1") is None
    await opened(tree).drop_lease("orders", "u1", "t1")
    await made(tree)
    # Looked for, and then it is gone.
    with pytest.raises(NoSuchLogError):
        await opened(tree, [None, None, None, None, lambda: removed(tree)]).take_lease("orders", "u1", "t1", "a")


async def test_the_lease_of_a_deleted_log_is_none_of_another_of_that_name(tree: MemoryStore) -> None:
    """Its writer says that it is there without having heard of either."""
    await made(tree)
    removed(tree)
    await made(tree, "u2")
    with pytest.raises(NoSuchLogError):
        await opened(tree).take_lease("orders", "u1", "t1", "host a", replace=True)
    assert await opened(tree).take_lease("orders", "u2", "t2", "host b") == Taken()
    await opened(tree).drop_lease("orders", "u1", "t2")
    assert await opened(tree).lease_holder("orders", "u2") == "host b"


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_lost_request_or_reply_takes_the_lease_all_the_same(tree: MemoryStore, trouble: str) -> None:
    await made(tree)
    assert await opened(tree, [None] * 4 + [trouble]).take_lease("orders", "u1", "t1", "host a") == Taken()
    written_by(tree, "t2")
    assert (
        await opened(tree, [None] * 4 + [trouble]).take_lease("orders", "u1", "t2", "host b", replace=True) == Taken()
    )


async def test_a_lease_that_can_not_be_taken_is_no_lease(tree: MemoryStore) -> None:
    await made(tree)
    assert isinstance(await opened(tree, [None] * 4 + [AWAY]).take_lease("orders", "u1", "t1", "a"), NotDone)
    assert isinstance(
        await opened(tree, [None] * 4 + [REQUEST_LOST] * 2).take_lease("orders", "u1", "t1", "a"), Unknown
    )
    assert await opened(tree).take_lease("orders", "u1", "t1", "a") == Taken()
    written_by(tree, "t2")
    assert isinstance(
        await opened(tree, [None] * 4 + [AWAY]).take_lease("orders", "u1", "t2", "b", replace=True), NotDone
    )
    with pytest.raises(MetadataUnavailableError):
        await opened(tree, [None] * 2 + [AWAY]).drop_lease("orders", "u1", "t1")
    assert await opened(tree).lease_holder("orders", "u1") == "a"


async def test_of_an_unreadable_lease_it_is_known_that_it_is_there(tree: MemoryStore) -> None:
    await made(tree)
    tree.apply(Create(f"{LIST}/u1/lease", b"?"), 0)
    assert isinstance(await opened(tree).take_lease("orders", "u1", "t1", "a"), HeldBy)
    written_by(tree, "t1")
    assert await opened(tree).take_lease("orders", "u1", "t1", "a", replace=True) == Taken()


async def test_a_list_that_may_not_be_read_is_listed_with_the_others(tree: MemoryStore) -> None:
    for name, uid in (("aaa", "u1"), ("bbb", "u2"), ("ccc", "u3")):
        assert await opened(tree).create(name, a_list(uid)) == Done(0)
    store = Troubled(tree)
    store.forbidden = {f"{ROOT}/logs/bbb"}
    assert [name async for name in on(store).living_names()] == ["aaa", "bbb", "ccc"]
