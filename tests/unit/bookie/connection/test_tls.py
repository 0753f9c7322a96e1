"""TLS between clients and bookies: who is refused and is told why, what strangers cost, certificates that change."""

from __future__ import annotations

import asyncio
import datetime
import logging
import shutil
import ssl
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvloop
from tests.certificates import Authority, Issued
from tests.hooks import (
    accepted_transport,
    certificates_of,
    channels_of,
    handshakes_of,
    pauses_of,
    store_of,
    takes_answers,
    transport_of,
)
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.admin.test_drain_work import known
from tests.unit.bookie.connection.raw import Raw, add, frame
from tests.unit.storage.support import found_ids
from tests.waiting import eventually

import bkpy
from bkpy.config.client import client_settings
from bkpy.errors import ConfigError, TlsError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire.messages import Op, Status
from bkpy.runtime.accepted import closed_by_client
from bkpy.runtime.tls import Certificates, Failure, Side, TlsFiles, explained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.metadata.store.memory import MemorySession

pytestmark = pytest.mark.real("TLS needs sockets of the kernel")

KEY = bytes(32)
PAST = -datetime.timedelta(hours=1)
# A busy machine may need longer for what nothing waits for: no timeout of these tests is as short.
PATIENT = {"no_bookies_timeout_s": 2.0 * DEADLINE_S, "read_timeout_s": 2.0 * DEADLINE_S}


CERTIFICATE_END = "bkpy_bookie_certificate_end_seconds"
NO_TEXT = b"\x86\x03x:\xff"  # an encoded name, a URI


class Secure:
    """Three bookies with TLS, and the certificates of a test."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory / "ca")
        self.others = Authority(directory / "others", "another-ca")
        self.of_bookies = self.ca.issue("bookie")
        self.of_client = self.ca.issue("client")
        self.cluster = InProcess(directory)

    async def start(self, **settings: Any) -> None:
        await self.cluster.start("abc", **self.ca.settings(self.of_bookies), **settings)

    async def client(self, ca: Authority | None = None, issued: Issued | None = None, **settings: Any) -> Client:
        trusted = (ca or self.ca).settings(issued or self.of_client)
        return await self.cluster.client(**trusted, **settings)

    def context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """A client's, for those who speak for themselves; a good one's, unless it is `issued` another certificate."""
        issued = issued or self.of_client
        context = ssl.create_default_context(cafile=str(self.ca.file))
        context.load_cert_chain(issued.certificate, issued.key)
        return context

    def refused(self, failure: Failure) -> int:
        """How many handshakes have failed so."""
        labels = {"reason": failure.value}
        return int(sum(self.metric("bkpy_bookie_tls_failures_total", labels, name) for name in "abc"))

    def metric(self, sample: str, labels: dict[str, str] | None = None, name: str = "a") -> float:
        """What the bookie's metrics say."""
        found = self.cluster.service(name).metrics.registry.get_sample_value(sample, labels or {})
        assert found is not None
        return found


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    made = Secure(tmp_path)
    yield made
    await made.cluster.stop()


async def refusal(client: Client) -> str:
    """What a `PATIENT` client hears of the bookies, long before it would give up."""
    with pytest.raises(TlsError) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await client.create_ledger()
    assert caught.value.bookie is not None
    assert isinstance(caught.value, bkpy.BookieUnavailableError)
    assert not caught.value.retriable
    return caught.value.message


@pytest.mark.thorough
async def test_entries_written_and_read_with_tls(secure: Secure) -> None:
    await secure.start()
    client = await secure.client()
    writer = await client.create_ledger(ack_quorum=3)
    large = bytes(range(256)) * 8000  # in several TLS records, and in many
    payloads = [b"", b"x", large, *(str(i).encode() * 100 for i in range(2000))]
    await asyncio.gather(*(writer.append(payload) for payload in payloads))
    await writer.close()
    assert await contents(client, writer.ledger_id) == payloads
    open_one = await client.create_ledger()
    await open_one.append(b"a")
    reader = await (await secure.client()).recover_ledger(open_one.ledger_id)
    assert [entry.data async for entry in reader.read()] == [b"a"]


@pytest.mark.thorough
async def test_a_context_of_ones_own_does_as_well(secure: Secure) -> None:
    await secure.start()
    client = await secure.cluster.client(tls=secure.context())
    writer = await client.create_ledger()
    assert await writer.append(b"x") == 0
    await writer.close()


@pytest.mark.thorough
@pytest.mark.parametrize("bad", ["of another CA", "expired", "none"])
async def test_a_client_whose_certificate_is_not_good_is_told_so(secure: Secure, bad: str) -> None:
    await secure.start()
    if bad == "none":
        client = await secure.cluster.client(**secure.ca.settings(), **PATIENT)
        words, failure = "takes only clients with a certificate", Failure.NO_CERTIFICATE
    elif bad == "expired":
        client = await secure.client(issued=secure.ca.issue("old", ends=PAST), **PATIENT)
        words, failure = "certificate has expired, the bookie says", Failure.EXPIRED
    else:
        strange = secure.others.issue("strange")
        client = await secure.cluster.client(**secure.ca.settings(strange), **PATIENT)
        words, failure = "trusts no CA that has signed this side's certificate", Failure.UNKNOWN_CA
    assert words in await refusal(client)
    assert secure.refused(failure) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("bad", ["of another CA", "expired", "of another host"])
async def test_a_client_does_not_talk_to_a_bookie_whose_certificate_is_not_good(secure: Secure, bad: str) -> None:
    if bad == "of another host":
        secure.of_bookies, words = secure.ca.issue("elsewhere", ("bookie.example",)), "of another host"
    elif bad == "expired":
        secure.of_bookies, words = secure.ca.issue("old", ends=PAST), "the bookie's certificate has expired"
    else:
        words = f"signed by none of the CAs in {secure.others.file}"
    await secure.start()
    ca = secure.others if bad == "of another CA" else secure.ca
    client = await secure.client(ca, secure.of_client, **PATIENT)
    assert words in await refusal(client)


def test_a_certificate_that_is_replaced_while_it_is_read_is_read_again(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = secure.ca.settings(secure.of_bookies)
    names = TlsFiles(files["tls_ca_file"], files["tls_certificate_file"], files["tls_key_file"])
    read = ssl.SSLContext.load_cert_chain

    def and_replaced(self: ssl.SSLContext, *arguments: Any) -> None:
        read(self, *arguments)
        new = secure.ca.issue("bookie", file="new")
        new.certificate.replace(secure.of_bookies.certificate)
        new.key.replace(secure.of_bookies.key)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(ssl.SSLContext, "load_cert_chain", and_replaced)
        certificates = Certificates(names, Side.BOOKIE)
    assert certificates.reload()
    assert not certificates.reload()


def ends(names: TlsFiles, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A client's end and a bookie's, that are at the beginning of their handshake."""
    client, bookie = Certificates(names, Side.CLIENT).context, Certificates(names, Side.BOOKIE).context
    to_near, to_far = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = client.wrap_bio(to_far, to_near, server_hostname=host)
    near = bookie.wrap_bio(to_near, to_far, server_side=True)
    for end in (far, near):
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
    return far, near


def test_a_common_name_is_not_the_name_of_a_host(secure: Secure) -> None:
    """Whoever signs certificates for clients looks at what they are called, and not at which hosts are called so."""
    files = secure.ca.settings(secure.ca.issue("b1.example", ()))
    names = TlsFiles(files["tls_ca_file"], files["tls_certificate_file"], files["tls_key_file"])
    far, _ = ends(names, "b1.example")
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        far.do_handshake()
    assert explained(caught.value, "the bookie", names)[0] is Failure.HOST_NAME


def test_no_client_resumes_a_session(secure: Secure) -> None:
    """It would not show its certificate again, which may have ended, or be of a CA that is not trusted any more."""
    files = secure.ca.settings(secure.of_client)
    far, near = ends(TlsFiles(files["tls_ca_file"], files["tls_certificate_file"], files["tls_key_file"]), "127.0.0.1")
    far.do_handshake()
    near.do_handshake()
    near.write(b"x")
    assert far.read(1) == b"x"  # and with it whatever came before
    assert far.session is None or not far.session.has_ticket


@pytest.mark.thorough
async def test_an_older_tls_is_refused_and_told_so_at_both_ends(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    await secure.start()
    old = secure.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with caplog.at_level(logging.WARNING, "bkpy.bookie"):
        assert "takes no TLS as old as this side's" in await refusal(await secure.cluster.client(tls=old, **PATIENT))
    assert "the client speaks an older TLS than this side takes" in caplog.text
    assert secure.refused(Failure.VERSION) >= 3


@pytest.mark.thorough
async def test_a_client_without_tls_is_told_to_speak_it(secure: Secure) -> None:
    await secure.start()
    client = await secure.cluster.client(**PATIENT)
    assert "this bookie speaks TLS only" in await refusal(client)
    assert secure.refused(Failure.PLAIN) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("trusted", [None, False], ids=["it speaks no TLS", "it has no certificate"])
async def test_a_bookie_that_refuses_an_administrators_client_is_not_lost(secure: Secure, trusted: bool | None) -> None:
    """It runs, cut off from the metadata store, and others may still write to it."""
    await secure.start()
    client = await secure.cluster.client(**({} if trusted is None else secure.ca.settings()))
    admin, cut_off = bkpy.AdminClient(client), cast("MemorySession", store_of(secure.cluster.node("c")))
    cut_off.suspend()
    cut_off.expire()
    await eventually(lambda: "c" not in client.bookies)
    with pytest.raises(TlsError):
        await admin.is_reachable("c")
    with pytest.raises(TlsError):
        await admin.decommission("c", lost=True)
    assert await known(secure.cluster, "c")
    cut_off.resume()
    await eventually(lambda: "c" in client.bookies)


@pytest.mark.thorough
async def test_a_client_with_tls_is_told_that_a_bookie_speaks_none(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    await secure.cluster.start("abc")
    with caplog.at_level(logging.WARNING, "bkpy.bookie"):
        assert "the bookie speaks no TLS" in await refusal(await secure.client(**PATIENT))
    assert "these bytes are TLS, which this side doesn't speak" in caplog.text


@pytest.mark.thorough
async def test_reading_without_trust_fails_as_soon(secure: Secure) -> None:
    await secure.start()
    client = await secure.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    stranger = await secure.cluster.client(**PATIENT)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TlsError, match="TLS only"):
            await stranger.open_ledger(writer.ledger_id)
        await writer.close()
        with pytest.raises(TlsError, match="TLS only"):
            await contents(stranger, writer.ledger_id)


@pytest.mark.thorough
async def test_a_certificate_whose_names_are_no_text_is_refused_with_a_line_now_and_then(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    await secure.start(complaint_interval_s=1000.0 * DEADLINE_S)
    strange = secure.ca.issue("strange", raw_names=NO_TEXT)
    for _ in range(3):
        client = await secure.client(issued=strange, no_bookies_timeout_s=0.0)
        with pytest.raises(bkpy.BookKeeperError):
            await client.create_ledger()
        await client.close()
    await eventually(lambda: secure.refused(Failure.OTHER) >= 3)
    told = [record.getMessage() for record in caplog.records if record.name != "bkpy.client"]
    reasons = Counter(line.partition(": ")[2].partition(";")[0] for line in told)
    assert 1 <= reasons.pop("the client's certificate has names that are no text") <= 3, told  # one of each bookie
    # On a busy machine it may be closed while it tries again.
    assert reasons.keys() <= {"the client closed the connection during the TLS handshake"}, told


@pytest.mark.thorough
async def test_a_client_that_is_refused_without_an_alert_does_not_wait_for_its_time_out(secure: Secure) -> None:
    await secure.start(tls_handshake_timeout_s=2.0 * DEADLINE_S)
    host, port = secure.cluster.node("a").address.rsplit(":", 1)
    context = secure.context(secure.ca.issue("strange", raw_names=NO_TEXT))
    reader, writer = await asyncio.open_connection(host, port, ssl=context)  # as far as the client knows it succeeds
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.thorough
async def test_what_was_refused_is_logged_now_and_then_with_the_reason(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    await secure.start()
    host, port = secure.cluster.node("a").address.rsplit(":", 1)
    with caplog.at_level(logging.WARNING, "bkpy.bookie"):
        for _ in range(5):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            writer.close()
        await eventually(lambda: secure.refused(Failure.PLAIN) == 5)
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == ["the client speaks no TLS, but HTTP"]


# --- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_strangers_cost_no_connection_and_no_memory_of_the_budget(secure: Secure) -> None:
    """However many there are: the oldest are closed, and those with a certificate get through."""
    await secure.start(tls_handshakes_max=4, tls_handshake_timeout_s=2.0 * DEADLINE_S)
    cluster = secure.cluster
    memory = cluster.storage("a").memory
    before = memory.used
    host, port = cluster.node("a").address.rsplit(":", 1)
    strangers = [await asyncio.open_connection(host, port) for _ in range(12)]
    for _, writer in strangers:
        writer.write(b"\x16\x03\x01")  # the first bytes of a handshake that never goes on
    await eventually(lambda: len(handshakes_of(cluster.server("a"))) == 4)
    assert cluster.connections("a") == []
    assert memory.used == before
    async with asyncio.timeout(DEADLINE_S):
        for reader, _ in strangers[:8]:
            assert await reader.read() == b""
    client = await secure.client(connect_timeout_s=float(DEADLINE_S))
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    await writer.close()
    for _, stranger in strangers:
        stranger.close()


@pytest.mark.thorough
async def test_a_handshake_that_takes_too_long_is_given_up(secure: Secure) -> None:
    await secure.start(tls_handshake_timeout_s=0.05)
    host, port = secure.cluster.node("a").address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, port)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    assert secure.refused(Failure.SLOW) == 1
    await eventually(lambda: handshakes_of(secure.cluster.server("a")) == {})
    writer.close()


@pytest.mark.thorough
async def test_a_client_that_reads_none_of_its_answers_is_held_back(secure: Secure) -> None:
    """Flow control reaches through TLS: little waits to be sent, and the bookie makes no more answers."""
    most = 16 << 10
    await secure.start(tls_buffer_bytes_max=most)
    client = await secure.client()
    writer = await client.create_ledger(ack_quorum=3)
    await asyncio.gather(*(writer.append(bytes(500_000)) for _ in range(8)))
    await writer.close()
    raw = await Raw.connect(secure.cluster, tls=secure.context())
    raw.stop_reading()
    head = [0, writer.ledger_id, 0, 7, 1 << 20]
    reads = 100
    for number in range(reads):
        raw.send(frame(Op.READ, head, correlation_id=number + 2))
    await eventually(lambda: not takes_answers(raw.near))
    await eventually(lambda: "writing" in pauses_of(raw.near))
    answer = 1 << 20  # one may go beyond the bound
    at_once = secure.cluster.service("a").settings.reads_at_once
    assert accepted_transport(raw.near).get_write_buffer_size() < most + at_once * answer
    assert raw.near.busy
    cast("asyncio.Transport", raw.writer.transport).resume_reading()
    for number in range(reads):
        assert (await raw.reply(number + 2))[0] == Op.READ | wire.REPLY
    raw.close()


@pytest.mark.thorough
async def test_adds_behind_a_frame_that_ends_the_connection_are_not_stored(secure: Secure) -> None:
    """A loop may hand on what it has already decrypted while a connection is closed; asyncio's own does."""
    await secure.start()
    raw = await Raw.connect(secure.cluster, tls=secure.context())
    raw.send(frame(Op.PRESENT, [[1], [KEY]]), add(1))
    assert (await raw.reply(7))[1] == Status.OK
    room = len(raw.near.get_buffer(-1))
    first, answer = add(1, 1, correlation_id=8), frame(Op.ADD | wire.REPLY, 0)
    padding = bytes(room - len(first + answer + frame(Op.PRESENT, [[], []])))
    raw.send(first, frame(Op.PRESENT, [[], []], padding), answer, add(1, 2), add(1, 3))
    await raw.rest()
    found = await secure.cluster.storage("a").read(1, 0, 9, 1 << 20)
    assert found_ids(found.segments) == [0, 1]


@pytest.mark.thorough
async def test_what_is_not_read_from_a_client_waits_in_its_own_socket(secure: Secure) -> None:
    most = 16 << 10
    await secure.start(tls_buffer_bytes_max=most)
    raw = await Raw.connect(secure.cluster, tls=secure.context())
    raw.near.pause("a test")
    flood = frame(Op.PRESENT, [[4711], [bytes(32)]]) * 10_000  # which has no reply
    before = raw.near.received_bytes
    transport = cast("Any", accepted_transport(raw.near))
    raw.writer.write(flood)
    await eventually(lambda: transport.get_read_buffer_size() >= most)
    await asyncio.sleep(0.1)
    assert transport.get_read_buffer_size() <= most + (256 << 10)  # and one read
    assert raw.near.received_bytes == before
    raw.near.resume("a test")
    await eventually(lambda: raw.near.received_bytes == before + len(flood))
    raw.close()


# --- certificates that change ---------------------------------------------------------------------------------------


def put_in_place(new: Issued, old: Issued) -> None:
    """Replace files as tools do: each at once."""
    for source, target in ((new.certificate, old.certificate), (new.key, old.key)):
        fresh = target.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.rename(target)


def serial(client: Client, name: str) -> str:
    """Of the certificate that the bookie has shown on the connection that is up now."""
    certificate = transport_of(channels_of(client)[name]).get_extra_info("peercert")
    return str(certificate["serialNumber"])


@pytest.mark.thorough
async def test_a_new_certificate_is_for_new_connections_and_writing_goes_on(secure: Secure) -> None:
    await secure.start(tls_reload_interval_s=0.05)
    client = await secure.client()
    writer = await client.create_ledger(ack_quorum=3)
    written = 0
    stop = asyncio.Event()

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            await asyncio.gather(*(writer.append(b"x" * 1000) for _ in range(100)))
            written += 100

    writing = asyncio.ensure_future(write())
    await eventually(lambda: written > 0)
    before = serial(client, "a")
    old = [certificates_of(secure.cluster.node(name)).context for name in "abc"]
    put_in_place(secure.ca.issue("bookie", file="renewed"), secure.of_bookies)
    await eventually(
        lambda: all(
            certificates_of(secure.cluster.node(name)).context is not context
            for name, context in zip("abc", old, strict=True)
        )
    )
    at = written
    await eventually(lambda: written > at)
    assert serial(client, "a") == before  # of the connection that was there
    late = await secure.client()
    other = await late.create_ledger(ack_quorum=3)
    assert serial(late, "a") != before
    await other.close()
    stop.set()
    await writing
    await writer.close()
    assert len(await contents(late, writer.ledger_id)) == written


@pytest.mark.thorough
async def test_a_clients_new_certificate_is_used_at_its_next_connection(secure: Secure) -> None:
    await secure.start()
    mine = secure.ca.issue("mine", ends=PAST)
    client = await secure.client(issued=mine)
    assert "expired" in await refusal(client)
    put_in_place(secure.ca.issue("mine", file="mine-renewed"), mine)
    # The last attempt with the old one may still fail.
    writer = await eventually(client.create_ledger, "a ledger", meanwhile=bkpy.BookKeeperError)
    await writer.close()


@pytest.mark.thorough
async def test_files_that_do_not_fit_change_nothing_and_are_told_of_once(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    await secure.start(tls_reload_interval_s=0.01)
    node = secure.cluster.node("a")
    certificates = certificates_of(node)
    context = certificates.context
    shutil.copy(secure.ca.issue("other").key, secure.of_bookies.key)
    with caplog.at_level(logging.ERROR, "bkpy.bookie"):
        await eventually(lambda: "don't belong together" in caplog.text)
        for _ in range(3):
            node.reload()
    of_a = [r for r in caplog.records if "goes on with its former certificates" in r.getMessage()]
    assert 1 <= len(of_a) <= 3  # one a bookie
    assert certificates.context is context
    await (await (await secure.client()).create_ledger()).close()


@pytest.mark.thorough
@pytest.mark.parametrize("bad", ["", "expired", "of another CA"])
async def test_a_bookie_says_when_its_certificate_ends_and_what_is_wrong_with_it(
    secure: Secure, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    days = datetime.timedelta(days=3)
    secure.of_bookies = (secure.others if bad == "of another CA" else secure.ca).issue(
        "mine", ends=PAST if bad == "expired" else days
    )
    await secure.start()
    ends = secure.metric(CERTIFICATE_END)
    if bad:
        assert ends == 0
        words = "has expired" if bad == "expired" else "is signed by none of the CAs"
        assert f"this bookie's certificate {words}" in caplog.text
    else:
        assert abs(ends - time.time() - days.total_seconds()) < DEADLINE_S
        assert "refuse" not in caplog.text
        secure.ca.issue("mine", ends=2 * days)
        secure.cluster.node("a").reload()
        renewed = secure.metric(CERTIFICATE_END)
        assert abs(renewed - time.time() - 2 * days.total_seconds()) < DEADLINE_S


@pytest.mark.thorough
async def test_a_bookie_whose_certificate_is_of_another_host_says_so(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    secure.of_bookies = secure.ca.issue("elsewhere", hosts=("elsewhere.example",))
    await secure.start()
    assert secure.metric(CERTIFICATE_END) == 0
    assert "this bookie's certificate is of another host" in caplog.text


def test_what_can_not_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    one, other = ca.issue("one"), ca.issue("other")
    missing = str(tmp_path / "missing.pem")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for files, words in [
        (TlsFiles(missing), "missing.pem"),
        (TlsFiles(str(empty)), "no certificates of a CA can be read"),
        (TlsFiles(str(ca.file), str(one.certificate), str(other.key)), "don't belong together"),
        (TlsFiles(str(ca.file), str(one.certificate), missing), "can't be read"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Certificates(files, Side.CLIENT)


def test_an_encrypted_key_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    ca = Authority(tmp_path)
    one = ca.issue("one")
    key = serialization.load_pem_private_key(one.key.read_bytes(), None)
    one.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="the key is encrypted"):
        Certificates(TlsFiles(str(ca.file), str(one.certificate), str(one.key)), Side.BOOKIE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_certificate_file": "c"}, "needed together"),
        ({"tls_certificate_file": "c", "tls_key_file": "k"}, "tls_ca_file is needed"),
    ],
)
def test_settings_that_are_not_whole_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client_settings(**settings)


@pytest.mark.thorough
async def test_a_client_that_goes_while_it_is_not_read_ends_no_watch_over_the_others(secure: Secure) -> None:
    """Its socket is closed a turn of the loop before `connection_lost`, and a look may come in between."""
    await secure.start()
    client = await secure.client()
    await (await client.create_ledger()).append(b"x")
    for connection in secure.cluster.connections("a"):
        connection.pause("memory")
        connection.abort()
        while not connection.lost:
            connection.count_idle_tick()
            await asyncio.sleep(0)
    assert not secure.cluster.connections("a")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_socket_that_is_closed_here_counts_as_closed(loop_factory: Any) -> None:
    async def main() -> list[bool]:
        accepted: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()

        class Noted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.put_nowait(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Noted, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        mine = await accepted.get()
        sock = mine.get_extra_info("socket")
        found = [closed_by_client(sock)]
        cast("asyncio.Transport", mine).abort()
        await lost.wait()
        found.append(closed_by_client(sock))
        transport.close()
        server.close()
        return found

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == [False, True]
