"""Values that can't be meant, refused where they are given: they cost neither a request nor anybody else anything."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import CHANNEL_SEND, channels_of
from tests.in_process import DEADLINE_S, InProcess, contents

import bkpy

if TYPE_CHECKING:
    from bkpy.client.bookies.channel import BookieChannel

NO_NUMBERS = [1.0, True, "1", b"1", float("nan"), [1]]
TOO_LARGE = 1 << 63

READS: dict[str, Any] = {
    "read, first": lambda reader, bad: reader.read(bad),
    "read, last": lambda reader, bad: reader.read(0, bad),
    "read_blocks, first": lambda reader, bad: reader.read_blocks(bad, 2),
    "read_blocks, last": lambda reader, bad: reader.read_blocks(0, bad),
    "read_unconfirmed, first": lambda reader, bad: reader.read_unconfirmed(bad, 5),
    "read_unconfirmed, last": lambda reader, bad: reader.read_unconfirmed(0, bad),
    "tail, first": lambda reader, bad: reader.tail(bad),
}
LEDGER_IDS: dict[str, Any] = {
    "open_ledger": lambda client, bad: client.open_ledger(bad),
    "recover_ledger": lambda client, bad: client.recover_ledger(bad),
    "ledger_metadata": lambda client, bad: client.ledger_metadata(bad),
    "delete_ledger": lambda client, bad: client.delete_ledger(bad),
}
PASSWORDS: dict[str, Any] = {
    "create_ledger": lambda client, ledger_id, bad: client.create_ledger(password=bad),
    "open_ledger": lambda client, ledger_id, bad: client.open_ledger(ledger_id, password=bad),
    "recover_ledger": lambda client, ledger_id, bad: client.recover_ledger(ledger_id, password=bad),
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is sent to bookies besides appends."""
    sent: list[Any] = []
    send = getattr(*CHANNEL_SEND)

    def recorded(self: BookieChannel, op: Any, head: bytes, body: Any) -> Any:
        sent.append(op)
        return send(self, op, head, body)

    monkeypatch.setattr(*CHANNEL_SEND, recorded)
    return sent


async def test_a_bad_id_is_refused_at_the_call(cluster: InProcess, requests: list[Any]) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    await writer.append_batch([b"x"] * 10)
    reader = await client.open_ledger(writer.ledger_id)
    requests.clear()
    for what, call in READS.items():
        name = what.split(", ")[1]
        bad_values = [*NO_NUMBERS, TOO_LARGE, *([-1] if name == "first" else [])]
        bad_values += [None] if what == "read_unconfirmed, last" else []
        for bad in bad_values:
            with pytest.raises(bkpy.ConfigError, match=f"^{name} must"):
                call(reader, bad)
    assert requests == []
    await writer.close()


async def test_a_bad_ledger_id_is_refused_at_the_call(cluster: InProcess) -> None:
    client = await cluster.client()
    for call in LEDGER_IDS.values():
        for bad in (*NO_NUMBERS, TOO_LARGE, -1, None):
            with pytest.raises(bkpy.ConfigError, match=r"^ledger_id must"):
                await call(client, bad)


async def test_bad_sizes_and_passwords_are_refused_at_the_call(cluster: InProcess) -> None:
    client = await cluster.client()
    for name in ("ensemble_size", "write_quorum", "ack_quorum"):
        for bad in (*NO_NUMBERS, None):
            with pytest.raises(bkpy.ConfigError, match=f"^{name} must be a whole number"):
                await client.create_ledger(**{name: bad})
    writer = await client.create_ledger()
    for call in PASSWORDS.values():
        for bad in ("secret", None, 1):
            with pytest.raises(bkpy.ConfigError, match=r"^password must be bytes"):
                await call(client, writer.ledger_id, bad)
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [writer.ledger_id]
    await writer.close()


@pytest.mark.parametrize("name", ["bkpy.log", "bkpy.log_uid", "bkpy.", "bkpy.anything"])
async def test_custom_metadata_have_no_names_that_bkpy_deletes_ledgers_by(cluster: InProcess, name: str) -> None:
    client = await cluster.client()
    with pytest.raises(bkpy.ConfigError, match=rf"{name}.*begin with 'bkpy\.'"):
        await client.create_ledger(custom_metadata={"mine": b"1", name: b"1"})
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    await (await client.create_ledger(custom_metadata={"bkpy": b"1", "my.bkpy.log": b"1"})).close()


async def test_custom_metadata_have_no_names_that_are_no_utf8(cluster: InProcess) -> None:
    client = await cluster.client()
    with pytest.raises(bkpy.ConfigError, match=r"'a\\udcff'.*no UTF-8"):
        await client.create_ledger(custom_metadata={"a\udcff": b"1"})


@pytest.mark.parametrize("bad", ["abc", "", 5, 0, [("a", b"1")]])
async def test_custom_metadata_are_a_mapping(cluster: InProcess, bad: Any) -> None:
    client = await cluster.client()
    with pytest.raises(bkpy.ConfigError, match="custom_metadata is a mapping of text to bytes"):
        await client.create_ledger(custom_metadata=bad)


def test_the_error_of_what_a_newer_version_has_stored_is_public() -> None:
    assert bkpy.UnsupportedVersionError is bkpy.errors.UnsupportedVersionError


async def test_a_bad_entry_id_is_refused_at_the_call(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(caller_ids=True)
    for bad in (*NO_NUMBERS, TOO_LARGE, -1):
        with pytest.raises(bkpy.ConfigError, match="entry_id"):
            await writer.append(b"x", entry_id=bad)
        with pytest.raises(bkpy.ConfigError, match="entry_id"):
            writer.append_nowait(b"x", entry_id=bad)
    assert await writer.append(b"0", entry_id=0) == 0
    await writer.close()


async def test_the_highest_ids_there_can_be_harm_nobody(cluster: InProcess) -> None:
    """They are asked for where they can be, and other users of the connection don't notice."""
    client = await cluster.client(read_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"0")
    reader = await client.open_ledger(writer.ledger_id)
    highest = TOO_LARGE - 1
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(bkpy.NoSuchEntryError):
            await anext(reader.read(highest - 1, highest))
        with pytest.raises(bkpy.NoSuchEntryError):
            await anext(reader.read_unconfirmed(highest, highest))
        with pytest.raises(bkpy.NoSuchLedgerError):
            await client.open_ledger(highest)
        assert await writer.append(b"1") == 1
        await writer.close()
    assert [entry async for entry in reader.read(0, -1)] == []
    assert await contents(client, writer.ledger_id) == [b"0", b"1"]
    assert {channel.generation for channel in channels_of(client).values()} == {1}


@pytest.mark.parametrize("uri", [None, 1, b"zk://127.0.0.1/x", ["zk://127.0.0.1/x"]])
async def test_a_uri_that_is_no_text_is_refused_with_what_was_expected(uri: Any) -> None:
    with pytest.raises(bkpy.ConfigError, match=r"a metadata URI is a str, not .*expected zk://host:port"):
        await bkpy.connect(uri)


async def test_one_connect_is_the_context_of_one_task_at_a_time(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bkpy.Client] = []

    async def connected(*_: Any, **__: Any) -> bkpy.Client:
        if not made:
            made.append(await cluster.client())
            return made[0]
        raise bkpy.MetadataUnavailableError("gone")

    async def store(*_: Any, **__: Any) -> Any:
        return cluster.tree.session(), "/"

    monkeypatch.setattr("bkpy.client.connecting.open_client", connected)
    monkeypatch.setattr("bkpy.client.connecting.connect_store", store)
    connecting = bkpy.connect("zk://127.0.0.1:1/x")
    async with connecting as client:
        with pytest.raises(RuntimeError, match=r"call bkpy\.connect for each"):
            async with connecting:
                pass
        assert client is made[0]
        await (await client.create_ledger()).close()
    for _ in range(2):
        with pytest.raises(bkpy.MetadataUnavailableError):
            async with connecting:
                pass
    with pytest.raises(bkpy.ClientClosedError):
        await client.create_ledger()


def test_connect_is_a_coroutine_for_asyncio() -> None:
    connecting = bkpy.connect("zk://127.0.0.1:1/none", metadata_refused_timeout_s=0.001)
    with pytest.raises(bkpy.MetadataUnavailableError):
        asyncio.run(connecting)

    async def as_a_task() -> None:
        task = asyncio.create_task(bkpy.connect("zk://127.0.0.1:1/none"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(as_a_task())
    bkpy.connect("zk://127.0.0.1:1/none").close()


async def test_a_bad_position_of_a_log_is_refused_at_the_call(cluster: InProcess) -> None:
    """Above all in a truncation: the log's list would have it, and nobody could read that any more."""
    client = await cluster.client()
    admin = bkpy.AdminClient(client)
    log = await client.open_log("orders", create=True)
    await log.append_batch([b"x"] * 10)
    reader = await client.read_log("orders")
    await reader.refresh(confirmed=log.next_position)
    calls: dict[str, Any] = {
        "before": log.truncate,
        "before, by an administrator": lambda bad: admin.truncate_log("orders", bad),
        "position": reader.lag_at,
        "position, of a consumer": lambda bad: reader.consumer("billing", position=bad, create=True),
        "confirmed": lambda bad: reader.refresh(confirmed=bad),
    }
    for what, call in calls.items():
        bad_values = [bad for bad in NO_NUMBERS if not (what.endswith("consumer") and isinstance(bad, str))]
        for bad in (*bad_values, TOO_LARGE, -1):
            with pytest.raises(bkpy.ConfigError, match=f"^{what.split(',')[0]} must"):
                await call(bad)
    await log.truncate(3)
    assert [entry.position async for entry in reader.read(3)] == list(range(3, 10))
    await log.close()
    async with await client.open_log("orders") as log:
        assert (log.first_position, log.next_position) == (3, 10)


async def test_numbers_beyond_what_a_machine_holds_are_refused_or_served_by_logs(cluster: InProcess) -> None:
    client = await cluster.client()
    with pytest.raises(bkpy.ConfigError, match=r"^retention_bytes must be from 0 to"):
        await client.open_log("orders", create=True, retention_bytes=10**5000)
    async with await client.open_log("orders", create=True) as log:
        assert await log.append(b"0") == 0
    async with await client.read_log("orders") as reader:
        for bad in (10**400, -(10**400)):
            with pytest.raises(bkpy.ConfigError, match="a float can hold"):
                await reader.position_at(bad)
        assert [entry.data for entry in await reader.poll(max_entries=2**70)] == [b"0"]


async def test_a_bad_time_is_refused_at_the_call(cluster: InProcess) -> None:
    admin = bkpy.AdminClient(await cluster.client())
    for bad in (float("nan"), float("inf"), -float("inf"), 10**400, "1", True, datetime.now(UTC)):
        with pytest.raises(bkpy.ConfigError, match=r"^since must be .*seconds"):
            admin.find_ledgers(since=bad)  # type: ignore[arg-type]
        with pytest.raises(bkpy.ConfigError, match=r"^since must be .*seconds"):
            await admin.audit_trail(since=bad)  # type: ignore[arg-type]
    for good in (0, -1.5, 1e300):
        assert [ledger async for ledger in admin.find_ledgers(since=good)] == []
        assert await admin.audit_trail(since=good) == []
