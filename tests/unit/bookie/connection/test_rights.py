"""The file of rights: what clients may do by the names in their certificates, and what happens when it changes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.certificates import Authority
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.bookie.connection.raw import Raw, add, frame, record
from tests.waiting import eventually

import bkpy
from bkpy.cli.bookie.pages import open_pages
from bkpy.config.access_file import read_access_file
from bkpy.config.client import client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import ConfigError, UnauthorizedError
from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client

pytestmark = pytest.mark.real("certificates need TLS, and that needs sockets of the kernel")

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

    def context(self, name: str) -> ssl.SSLContext:
        """Of a client that speaks for itself."""
        issued = self.ca.issue(name)
        context = ssl.create_default_context(cafile=str(self.ca.file))
        context.load_cert_chain(issued.certificate, issued.key)
        return context

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


@pytest.mark.thorough
async def test_a_writer_may_write_and_read(guarded: Guarded) -> None:
    for name in ("writer", "bookie-7"):
        client = await guarded.client(name)
        writer = await client.create_ledger()
        await writer.append(b"x")
        await writer.close()
        assert await contents(client, writer.ledger_id) == [b"x"]


@pytest.mark.thorough
async def test_a_name_may_be_any_of_the_certificates(guarded: Guarded) -> None:
    client = await guarded.client("nobody", uris=("spiffe://x/orders",))
    await (await client.create_ledger()).close()


@pytest.mark.thorough
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
    other = await reading.create_ledger()  # in the metadata, which the bookies don't guard
    with pytest.raises(UnauthorizedError, match="file of rights"):
        await other.append(b"z")
    for name in "abc":
        assert other.ledger_id not in await guarded.cluster.storage(name).held_ledgers(0, 100)
    writer.abandon()  # its metadata say IN_RECOVERY, which the bookies don't guard either


@pytest.mark.thorough
async def test_no_request_of_a_reader_changes_anything_whatever_it_is_called(guarded: Guarded) -> None:
    """A fence is a write, in whichever request it comes; and so is a key that is shown."""
    writing = await guarded.client("writer")
    writer = await writing.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    ledger_id, key = writer.ledger_id, writer.metadata.ledger_key
    raw = await Raw.connect(guarded.cluster, tls=guarded.context("reader"))
    fencing = int(Flags.RECOVERY)
    raw.send(
        frame(Op.PRESENT, [[ledger_id, 999], [key, key]]),
        frame(Op.READ, [fencing, ledger_id, 0, 0, 1000], correlation_id=10),
        frame(Op.READ, [fencing, 999, 0, 0, 1000], correlation_id=11),
        frame(Op.READ_LAC, [fencing, ledger_id], correlation_id=12),
        frame(Op.WRITE_LAC, [ledger_id], record(ledger_id), correlation_id=13),
        frame(Op.FORCE, [ledger_id], correlation_id=14),
        add(ledger_id, 1, correlation_id=15),
        add(999, flags=fencing, correlation_id=16),
        frame(Op.READ, [0, ledger_id, 0, 0, 1000], correlation_id=17),
    )
    for number in range(10, 17):
        _, head = await raw.reply(number)
        assert (head if isinstance(head, int) else head[0]) == Status.FORBIDDEN
    assert (await raw.reply(17))[1][0] == Status.OK
    assert not len(raw.near.keys)
    assert await guarded.cluster.storage("a").held_ledgers(-1, 100) == [ledger_id]
    assert await writer.append(b"y") == 1  # it was not fenced
    await writer.close()
    raw.writer.close()


@pytest.mark.thorough
async def test_a_long_poll_ends_when_its_client_loses_all_rights(guarded: Guarded) -> None:
    writing = await guarded.client("writer")
    writer = await writing.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    raw = await Raw.connect(guarded.cluster, tls=guarded.context("reader"))
    raw.send(frame(Op.WAIT_LAC, [writer.ledger_id, 5, True, 3_600_000], correlation_id=10))
    await eventually(lambda: raw.near.requests.in_flight == 1)
    guarded.reload(RULES.replace("cn:reader", "cn:another"))
    told = await raw.rest()
    assert told[0][1][0] == Status.FORBIDDEN
    assert 10 not in told or told[10][1][0] != Status.OK
    await eventually(lambda: raw.near not in guarded.cluster.connections("a"))
    await eventually(lambda: raw.near.requests.in_flight == 0)
    await writer.append(b"y")
    await writer.close()


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "hosts", "words"),
    [
        ("evil\n2026-01-01 ERROR", (), "does not give cn:evil\\n2026-01-01 ERROR the right"),
        ("many", tuple(f"{n}.example" for n in range(3000)), "cn:many, dns:0.example, dns:1.example, dns:2.example, "),
        ("", ("127.0.0.1",), "does not give a certificate without names the right"),
    ],
)
async def test_whatever_somebody_is_called_it_is_told_on_one_short_line(
    guarded: Guarded, name: str, hosts: tuple[str, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await guarded.client(name, hosts=hosts, file="strange")
    with pytest.raises(UnauthorizedError) as caught:
        await client.create_ledger()
    assert words in caught.value.message
    told = [record.getMessage() for record in caplog.records if "does not give" in record.getMessage()]
    assert told
    assert all(words in line and "\n" not in line and len(line) < 1000 for line in told)


@pytest.mark.thorough
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


@pytest.mark.thorough
async def test_a_writer_that_may_only_read_now(guarded: Guarded) -> None:
    client = await guarded.client("writer")
    writer = await client.create_ledger()
    await writer.append(b"x")
    guarded.reload('read = ["cn:writer"]')
    with pytest.raises(UnauthorizedError, match="file of rights") as caught:
        await writer.append(b"y")
    assert caught.value.outcome_unknown
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read_unconfirmed(0, 0)] == [b"x"]
    writer.abandon()


@pytest.mark.thorough
async def test_a_name_that_is_given_a_right_has_it_at_once(guarded: Guarded) -> None:
    client = await guarded.client("late")
    with pytest.raises(bkpy.UnauthorizedError):
        await client.create_ledger()
    guarded.reload(RULES.replace("cn:writer", "cn:late"))
    await (await client.create_ledger()).close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rules",
    [
        "read = [",
        "reed = []",
        "read = 'cn:x'",
        "read = [1]",
        "read = ['x']",
        pytest.param("read = " + "[" * 100_000, id="nested deeply"),
        pytest.param("read = " + "1" * 10_000, id="a long number"),
    ],
)
async def test_a_file_that_makes_no_sense_takes_no_right_and_gives_none(
    guarded: Guarded, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.reload(rules)
    assert "the file of rights" in caplog.text
    assert caplog.text.count("goes on with its former certificates") == 3
    for node in guarded.cluster.nodes:
        node.reload()
    assert caplog.text.count("goes on with its former certificates") == 3  # said once
    await (await (await guarded.client("writer")).create_ledger()).close()
    stranger = await guarded.client("stranger")
    with pytest.raises(UnauthorizedError):
        await stranger.create_ledger()


@pytest.mark.usefixtures("no_collection")
def test_an_error_of_the_file_has_the_same_text_wherever_it_is_read(tmp_path: Path) -> None:
    """Or a bookie logs it again at each look."""
    path = tmp_path / "rights.toml"
    path.write_text("read = " + "[" * 100_000)

    def text(depth: int) -> str:
        if depth:
            return text(depth - 1)
        with pytest.raises(ConfigError) as caught:
            read_access_file(str(path))
        return str(caught.value)

    assert {text(depth) for depth in range(20)} == {
        f"the file of rights is not TOML: it is nested too deeply [file {path}]"
    }


@pytest.mark.thorough
async def test_rights_are_read_again_though_the_certificate_can_not_be(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    (guarded.ca.directory / "bookie-1.pem").write_text("rotten")
    client = await guarded.client("writer")
    guarded.reload(RULES.replace("cn:writer", "cn:another"))
    with caplog.at_level(logging.ERROR), pytest.raises(UnauthorizedError):
        await client.create_ledger()


@pytest.mark.thorough
async def test_a_certificate_is_read_again_though_the_rights_can_not_be(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.ca.issue("bookie-1")
    with caplog.at_level(logging.INFO):
        guarded.reload("nonsense")
    assert caplog.text.count("reloaded the certificates") == 3
    assert caplog.text.count("not TOML") == 3


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_access_file(str(tmp_path / "missing.toml"))


def test_rights_need_certificates() -> None:
    flags = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a"}
    with pytest.raises(ConfigError, match="comes from its certificate"):
        load_bookie_settings(None, {}, {**flags, "access_file": "/r.toml"})
    with pytest.raises(ConfigError, match="needs tls_certificate_file"):
        load_bookie_settings(None, {}, {**flags, "tls_ca_file": "/ca.pem"})


# --- the metrics page -----------------------------------------------------------------------------------------------


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Guarded]:
    made = Guarded(tmp_path)
    made.write(RULES)
    mine = made.ca.settings(made.ca.issue("bookie-1"))
    await made.cluster.start("a", **mine, access_file=made.rules, metrics_port=0, metrics_tls=True)
    yield made
    await made.cluster.stop()


async def ask(pages: Guarded, method: str, path: str, name: str, body: bytes = b"") -> tuple[int, Any]:
    """The status and the body that somebody with this name gets."""
    context = pages.context(name)
    url = f"https://127.0.0.1:{pages.cluster.node('a').metrics_port}{path}"
    asked = {"ssl": context, "data": body, "headers": {"X-Bkpy": "1"}}
    async with aiohttp.ClientSession() as session, session.request(method, url, **asked) as response:  # type: ignore[arg-type]
        return response.status, (await response.text() if path == "/metrics" else await response.json())


@pytest.mark.thorough
async def test_commands_over_tls_are_for_those_who_may_administer(pages: Guarded) -> None:
    status, metrics = await ask(pages, "GET", "/metrics", "stranger")
    assert status == 200
    assert "bkpy_bookie_tls_handshakes_total" in metrics
    for name in ("stranger", "writer", "bookie-2"):
        assert (await ask(pages, "POST", "/gc", name))[0] == 403
    assert (await ask(pages, "POST", "/reload", "operator"))[1]["reloaded"] == []
    pages.write(RULES.replace("cn:operator", "cn:successor"))
    assert (await ask(pages, "POST", "/reload", "operator"))[1]["reloaded"] == ["rights"]
    status, told = await ask(pages, "POST", "/gc", "operator")
    assert status == 403
    assert "does not let cn:operator" in told["error"]
    assert (await ask(pages, "POST", "/gc", "successor"))[0] == 200
    pages.write("nonsense")
    status, told = await ask(pages, "POST", "/reload", "successor")
    assert status == 409
    assert "not TOML" in told["error"]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b'{"dry_run": 1}'], ids=lambda body: body[:9])
async def test_a_command_that_makes_no_sense_is_refused(pages: Guarded, body: bytes) -> None:
    assert (await ask(pages, "POST", "/gc", "operator", body))[0] == 400


async def test_the_page_gets_a_new_certificate_too(pages: Guarded) -> None:
    """Of another CA, so that nobody who was let in before is."""
    others = Authority(pages.ca.directory.parent / "others", "another-ca")
    new = others.issue("bookie-1")
    for source, target in (
        (others.file, pages.ca.file),
        (new.certificate, pages.ca.directory / "bookie-1.pem"),
        (new.key, pages.ca.directory / "bookie-1-key.pem"),
    ):
        target.write_bytes(source.read_bytes())
    pages.cluster.node("a").reload()
    with pytest.raises(aiohttp.ClientError):
        await ask(pages, "GET", "/metrics", "operator")
    pages.ca = others
    assert (await ask(pages, "GET", "/gc", "operator"))[0] == 200


async def test_who_has_no_certificate_does_not_see_the_page(pages: Guarded) -> None:
    url = f"127.0.0.1:{pages.cluster.node('a').metrics_port}/metrics"
    context = ssl.create_default_context(cafile=str(pages.ca.file))
    async with aiohttp.ClientSession() as session:
        for scheme in ("http", "https"):
            with pytest.raises(aiohttp.ClientError):
                async with session.get(f"{scheme}://{url}", ssl=context) as response:
                    await response.read()


async def test_a_command_finds_a_page_with_tls(pages: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    of_command = pages.ca.settings(pages.ca.issue("operator"))
    monkeypatch.setattr("bkpy.cli.bookie.pages.settings", lambda: client_settings(**of_command))
    admin = f"https://127.0.0.1:{pages.cluster.node('a').metrics_port}"
    async with open_pages("/gc", admin, "a", None) as page:
        assert (await page.get())["bookie_id"] == "a"
    monkeypatch.setattr("bkpy.cli.bookie.pages.settings", client_settings)
    with pytest.raises(ConfigError, match="the page has TLS: set BKPY_TLS_CA_FILE"):
        async with open_pages("/gc", admin, "a", None):
            pass
