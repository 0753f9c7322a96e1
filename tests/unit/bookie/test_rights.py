"""The file of rights: what clients may do by the names in their certificates, and what happens when it changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.certificates import Authority
from tests.in_process import DEADLINE_S, InProcess, contents, eventually

import bkpy
from bkpy.config.access_file import read_access_file
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import ConfigError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client

RULES = """\
read = ["cn:reader"]
write = ["cn:writer", "uri:spiffe://x/*"]
administer = ["cn:operator"]
bookies = ["cn:bookie-*"]
"""


class Guarded:
    """Three bookies that allow what the file `rules` says."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory / "ca")
        self.rules = directory / "rights.toml"
        self.cluster = InProcess(directory)

    async def start(self) -> None:
        self.write(RULES)
        mine = self.ca.settings(self.ca.issue("bookie-1"))
        await self.cluster.start("abc", **mine, access_file=self.rules, tls_reload_interval_s=3600.0)

    def write(self, rules: str) -> None:
        fresh = self.rules.with_suffix(".new")
        fresh.write_text(rules)
        fresh.rename(self.rules)

    def reload(self, rules: str) -> None:
        self.write(rules)
        for node in self.cluster.nodes:
            node.reload()

    async def client(self, name: str, **kwargs: Any) -> Client:
        return await self.cluster.client(
            **self.ca.settings(self.ca.issue(name, **kwargs)), no_bookies_timeout_s=2.0 * DEADLINE_S
        )


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    made = Guarded(tmp_path)
    await made.start()
    yield made
    await made.cluster.stop()


async def test_a_writer_may_write_and_read(guarded: Guarded) -> None:
    for name in ("writer", "bookie-7"):
        client = await guarded.client(name)
        writer = await client.create_ledger()
        await writer.append(b"x")
        await writer.close()
        assert await contents(client, writer.ledger_id) == [b"x"]


async def test_a_name_may_be_any_of_the_certificates(guarded: Guarded) -> None:
    client = await guarded.client("nobody", uris=("spiffe://x/orders",))
    await (await client.create_ledger()).close()


async def test_a_reader_may_read_and_no_more(guarded: Guarded) -> None:
    writing = await guarded.client("writer")
    writer = await writing.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    reading = await guarded.client("reader")
    reader = await reading.open_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read_unconfirmed(0, 0)] == [b"x"]
    with pytest.raises(UnauthorizedError, match="write, and so to fence"):
        await reading.recover_ledger(writer.ledger_id)
    assert await writer.append(b"y") == 1  # it was not fenced
    other = await reading.create_ledger()  # that is the metadata's, which the bookies don't guard
    with pytest.raises(UnauthorizedError, match="file of rights"):
        await other.append(b"z")
    for name in "abc":
        assert other.ledger_id not in await guarded.cluster.storage(name).held_ledgers(0, 100)
    await writer.close()


@pytest.mark.parametrize("name", ["stranger", "operator"])
async def test_who_has_no_right_to_ledgers_is_refused_at_the_greeting(
    guarded: Guarded, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await guarded.client(name)
    with pytest.raises(UnauthorizedError) as caught:
        await client.create_ledger()
    words = f"does not give cn:{name}"
    assert words in caught.value.message
    assert caught.value.bookie in ("a", "b", "c")
    assert words in caplog.text
    assert not any(connection.greeted for b in "abc" for connection in guarded.cluster.connections(b))


async def test_a_name_that_loses_its_right_while_it_writes(guarded: Guarded) -> None:
    client = await guarded.client("writer")
    writer = await client.create_ledger(ack_quorum=3)
    acknowledged = 0

    async def write() -> None:
        nonlocal acknowledged
        while True:
            await writer.append(b"x" * 100)
            acknowledged += 1

    writing = asyncio.ensure_future(write())
    await eventually(lambda: acknowledged > 10)
    guarded.reload(RULES.replace("cn:writer", "cn:another"))
    with pytest.raises(UnauthorizedError, match="does not give cn:writer") as caught:
        async with asyncio.timeout(DEADLINE_S):
            await writing
    assert caught.value.outcome_unknown
    successor = await guarded.client("another")
    reader = await successor.recover_ledger(writer.ledger_id)  # nothing that was acknowledged is lost
    assert reader.last_add_confirmed + 1 >= acknowledged
    writer.abandon()


async def test_a_writer_that_may_only_read_now(guarded: Guarded) -> None:
    client = await guarded.client("writer")
    writer = await client.create_ledger()
    await writer.append(b"x")
    guarded.reload(
        RULES.replace('read = ["cn:reader"', 'read = ["cn:writer"').replace('write = ["cn:writer"', "write = [")
    )
    with pytest.raises(UnauthorizedError, match="file of rights") as caught:
        await writer.append(b"y")
    assert caught.value.outcome_unknown
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read_unconfirmed(0, 0)] == [b"x"]
    writer.abandon()


async def test_a_name_that_is_given_a_right_has_it_at_once(guarded: Guarded) -> None:
    client = await guarded.client("late")
    with pytest.raises(bkpy.UnauthorizedError):
        await client.create_ledger()
    guarded.reload(RULES.replace("cn:writer", "cn:late"))
    await (await client.create_ledger()).close()


@pytest.mark.parametrize("rules", ["read = [", "reed = []", "read = 'cn:x'", "read = [1]", "read = ['x']"])
async def test_a_file_that_makes_no_sense_takes_no_right_and_gives_none(
    guarded: Guarded, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.reload(rules)
    assert "the file of rights" in caplog.text
    assert caplog.text.count("goes on with what it had") == 3
    for node in guarded.cluster.nodes:
        node.reload()
    assert caplog.text.count("goes on with what it had") == 3  # said once
    await (await (await guarded.client("writer")).create_ledger()).close()
    stranger = await guarded.client("stranger")
    with pytest.raises(UnauthorizedError):
        await stranger.create_ledger()


async def test_rights_are_read_again_though_the_certificate_can_not_be(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    (guarded.ca.directory / "bookie-1.pem").write_text("rotten")
    client = await guarded.client("writer")
    guarded.reload(RULES.replace("cn:writer", "cn:another"))
    with caplog.at_level(logging.ERROR), pytest.raises(UnauthorizedError):
        await client.create_ledger()


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_access_file(str(tmp_path / "missing.toml"))


def test_rights_need_certificates() -> None:
    flags = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a"}
    with pytest.raises(ConfigError, match="names are known by certificates only"):
        load_bookie_settings(None, {}, {**flags, "access_file": "/r.toml"})
    with pytest.raises(ConfigError, match="needs tls_certificate_file"):
        load_bookie_settings(None, {}, {**flags, "tls_ca_file": "/ca.pem"})
