"""START_TLS: the one request that a bookie with certificates answers in the clear."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.certificates import Authority
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.bookkeeper.raw import KEY, LEDGER, V2, V3, RawBookKeeper, entry
from tests.waiting import eventually

from bkpy.errors import BookieUnavailableError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.real("TLS needs sockets of the kernel")

OK = StatusCode.EOK


class Secure:
    """A bookie with certificates, and a client's."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory / "ca")
        self.cluster = InProcess(directory, of_bookkeeper=True)

    def context(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca.file))
        context.check_hostname = False
        if with_certificate:
            issued = self.ca.issue("client")
            context.load_cert_chain(issued.certificate, issued.key)
        return context

    def refused(self, reason: str) -> float | None:
        """How many clients were, for this reason."""
        registry = self.cluster.service("a").metrics.registry
        return registry.get_sample_value("bkpy_bookie_tls_failures_total", {"reason": reason})


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    made = Secure(tmp_path)
    # A busy machine may take long for a handshake.
    settings = made.ca.settings(made.ca.issue("bookie"))
    await made.cluster.start("a", tls_handshake_timeout_s=DEADLINE_S, gc_interval_s=0, **settings)
    yield made
    await made.cluster.stop()


async def start_tls(raw: RawBookKeeper, context: ssl.SSLContext) -> None:
    assert await raw.ask(m.StartTlsRequest()) == m.StartTlsResponse()
    async with asyncio.timeout(DEADLINE_S):
        await raw.writer.start_tls(context)


async def refusal(cluster: InProcess, context: ssl.SSLContext) -> str:
    """The bookie's alert."""
    raw = await RawBookKeeper.connect(cluster)

    async def ask() -> None:
        await start_tls(raw, context)
        await raw.read(0)  # TLS 1.3 says so only after the client's part of the handshake

    with pytest.raises(ssl.SSLError) as caught:
        await ask()
    return caught.value.reason or ""


@pytest.mark.parametrize("speaks", [V2, V3])
async def test_a_client_goes_on_with_tls(secure: Secure, speaks: str) -> None:
    raw = await RawBookKeeper.connect(secure.cluster, speaks=speaks)
    await start_tls(raw, secure.context())
    large = entry(1, bytes(range(256)) * 4000)  # in many TLS records
    assert await raw.add(0) == OK
    assert await raw.add(1, large) == OK
    assert [(await raw.read(i)).entry for i in range(2)] == [entry(0), large]
    assert (await raw.read(-1, fence=True)).entry == large
    raw.close()
    await eventually(lambda: not secure.cluster.connections("a"))


async def sent_with_a_bad_frame(secure: Secure, *behind: bytes) -> bytes:
    """The entry that is sent, before a bad frame which ends where the bookie's room for receiving does, and these."""
    raw = await RawBookKeeper.connect(secure.cluster, speaks=V2)
    await start_tls(raw, secure.context())
    assert await raw.add(0) == OK
    room = len(raw.near.get_buffer(-1))
    unknown = frames.LENGTH.pack(8) + bytes([2, 99, 0, 0, 0, 0, 0, 0])
    large = entry(1, bytes(room - len(unknown) - len(b"".join(p.encode_add(KEY, entry(1, b""))))))
    raw.send(p.encode_add(KEY, large), [unknown, *(behind or (b"\xff" * room,))])
    assert await raw.hung_up()
    return large


async def test_what_follows_a_bad_frame_is_not_received_over_what_came_before_it(secure: Secure) -> None:
    """A loop may hand on what it has already decrypted while a connection is closed; asyncio's own does."""
    large = await sent_with_a_bad_frame(secure)
    again = await RawBookKeeper.connect(secure.cluster, speaks=V2)
    await start_tls(again, secure.context())
    assert (await again.read(1)).entry == large
    again.close()


async def test_adds_behind_a_bad_frame_are_not_stored(secure: Secure) -> None:
    """The same, of bytes that make sense: nobody hears of what becomes of them."""
    await sent_with_a_bad_frame(secure, *(b"".join(p.encode_add(KEY, entry(i))) for i in (2, 3)))
    again = await RawBookKeeper.connect(secure.cluster, speaks=V2)
    await start_tls(again, secure.context())
    assert [(await again.read(i)).code for i in range(4)] == [OK, OK, StatusCode.ENOENTRY, StatusCode.ENOENTRY]
    again.close()


async def test_a_client_may_have_no_newer_tls_than_1_2(secure: Secure) -> None:
    """As Java's with `tlsEnabledProtocols=TLSv1.2`, or with an older JDK. It shows its certificate each time."""
    context = secure.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    raw = await RawBookKeeper.connect(secure.cluster)
    await start_tls(raw, context)
    assert await raw.add(0) == OK
    secured = raw.writer.get_extra_info("ssl_object")
    assert secured.version() == "TLSv1.2"
    assert secured.session is None or not secured.session.has_ticket
    raw.close()


def test_the_loop_that_bookies_run_on_goes_on_with_tls_too(tmp_path: Path) -> None:
    async def talk() -> None:
        made = Secure(tmp_path)
        settings = made.ca.settings(made.ca.issue("bookie"))
        await made.cluster.start("a", tls_handshake_timeout_s=DEADLINE_S, gc_interval_s=0, **settings)
        raw = await RawBookKeeper.connect(made.cluster, speaks=V2)
        await start_tls(raw, made.context())
        large = entry(0, bytes(range(256)) * 4000)
        assert await raw.add(0, large) == OK
        assert (await raw.read(0)).entry == large
        raw.close()
        assert (await refusal(made.cluster, made.context(with_certificate=False))).endswith("CERTIFICATE_REQUIRED")
        await made.cluster.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


async def test_a_client_does_what_its_name_may(tmp_path: Path) -> None:
    made = Secure(tmp_path)
    access = tmp_path / "access.toml"
    access.write_text('read = ["cn:client"]\n')
    settings = made.ca.settings(made.ca.issue("bookie"))
    await made.cluster.start("a", tls_handshake_timeout_s=DEADLINE_S, gc_interval_s=0, access_file=access, **settings)
    raw = await RawBookKeeper.connect(made.cluster)
    await start_tls(raw, made.context())
    for raw.speaks in (V2, V3):
        assert await raw.add(0) == StatusCode.EUA
        assert (await raw.read(0)).code == StatusCode.ENOLEDGER
    raw.speaks = V2
    assert (await raw.read(0, fence=True)).code == StatusCode.EUA
    assert (await raw.batch(0))[0] == StatusCode.ENOLEDGER
    assert (await raw.batch(0, fence=True))[0] == StatusCode.EUA
    for request in (m.ReadEntryRequest(LEDGER, 0, KEY, fence=True), m.ForceLedgerRequest(LEDGER)):
        assert await raw.ask(request) == StatusCode.EUA
    assert (await raw.ask(m.ReadLacRequest(LEDGER))).status == StatusCode.ENOLEDGER
    raw.close()
    await made.cluster.stop()


async def test_nothing_else_is_answered_in_the_clear(secure: Secure, caplog: pytest.LogCaptureFixture) -> None:
    raw = await RawBookKeeper.connect(secure.cluster)
    for raw.speaks in (V2, V3):
        if raw.speaks == V2:
            assert await raw.add(0) == StatusCode.EUA
            assert (await raw.read(0)).code == (await raw.read(0, fence=True)).code == StatusCode.EUA
            assert (await raw.batch(0))[0] == StatusCode.EUA
        else:
            requests = (m.AddEntryRequest(LEDGER, 0, KEY, entry(0)), m.ReadEntryRequest(LEDGER, 0))
            for request in (*requests, m.ReadLacRequest(LEDGER), m.BookieInfoRequest(3), m.ForceLedgerRequest(LEDGER)):
                assert await raw.ask(request) == StatusCode.EUA
    assert await raw.ask(m.AuthExchange("any", b"")) == m.AuthExchange("AuthDisabledPlugin", b"")
    assert secure.refused("plain") == 1, "one client"
    assert caplog.text.count("it sends requests without TLS") == 1
    await start_tls(raw, secure.context())
    assert (await raw.read(0)).code == StatusCode.ENOLEDGER, "nothing was stored"
    assert await raw.ask(m.StartTlsRequest()) == StatusCode.EBADREQ
    raw.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bad", "reason", "alert", "message"),
    [
        ("none", "no certificate", "CERTIFICATE_REQUIRED", "takes only clients with a certificate"),
        ("strange", "unknown CA", "UNKNOWN_CA", "trusts no CA that has signed this side's certificate"),
        ("old", "expired", "CERTIFICATE_EXPIRED", "this side's certificate has expired"),
    ],
)
async def test_a_refused_client_is_told_why(secure: Secure, bad: str, reason: str, alert: str, message: str) -> None:
    """By TLS's alert, which Java's clients log, and in the error of ours."""
    issued = {
        "none": lambda: None,
        "strange": lambda: Authority(secure.ca.directory / "others", "another-ca").issue("strange"),
        "old": lambda: secure.ca.issue("old", ends=-datetime.timedelta(hours=1)),
    }[bad]()
    context = secure.context(with_certificate=False)
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    assert (await refusal(secure.cluster, context)).endswith(alert)
    await eventually(lambda: not secure.cluster.connections("a"))
    assert secure.refused(reason) == 1
    client = await secure.cluster.client(**secure.ca.settings(issued))
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    with pytest.raises(BookieUnavailableError, match=message):
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"x")


@pytest.mark.thorough
async def test_a_refused_client_that_goes_on_with_requests_is_told_why(secure: Secure) -> None:
    """As far as it knows, a handshake of TLS 1.3 has succeeded. Writes to a closed socket fail before it reads."""
    context = secure.context(with_certificate=False)
    host, port = secure.cluster.node("a").address.rsplit(":", 1)
    start, request = (b"".join(m.encode_request(of, 1)) for of in (m.StartTlsRequest(), m.ReadLacRequest(LEDGER)))

    def shake_hands() -> ssl.SSLSocket:
        raw = socket.create_connection((host, int(port)), DEADLINE_S)
        raw.sendall(start)
        assert raw.recv(1024)
        return context.wrap_socket(raw, server_hostname=host)

    def go_on(client: ssl.SSLSocket) -> str:
        for _ in range(3):
            client.sendall(request)
            time.sleep(0.05)  # for a reset to arrive
        with pytest.raises(ssl.SSLError) as caught:
            client.recv(1)
        return caught.value.reason or ""

    client = await asyncio.to_thread(shake_hands)
    try:
        await eventually(lambda: secure.refused("no certificate") == 1)
        assert (await asyncio.to_thread(go_on, client)).endswith("CERTIFICATE_REQUIRED")
        assert not secure.cluster.connections("a"), "it takes no place meanwhile"
    finally:
        client.close()


async def test_what_comes_in_the_clear_behind_start_tls_is_refused(secure: Secure) -> None:
    """It would be taken for what came with TLS."""
    raw = await RawBookKeeper.connect(secure.cluster)
    raw.send(raw.message(m.StartTlsRequest())[1], p.encode_add(KEY, entry(0)))
    assert await raw.hung_up()
    await eventually(lambda: not secure.cluster.connections("a"))
    again = await RawBookKeeper.connect(secure.cluster)
    await start_tls(again, secure.context())
    assert (await again.read(0)).code == StatusCode.ENOLEDGER
    again.close()


async def test_what_comes_in_the_clear_after_the_answer_is_refused(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the loop has handed over to TLS."""
    raw = await RawBookKeeper.connect(secure.cluster)
    near = raw.near
    take = near.send

    def send_and_receive(buffers: list[bytes]) -> None:
        take(buffers)
        late = b"".join(p.encode_add(KEY, entry(0)))
        near.get_buffer(-1)[: len(late)] = late
        near.buffer_updated(len(late))

    monkeypatch.setattr(near, "send", send_and_receive)
    raw.send(raw.message(m.StartTlsRequest())[1])
    assert await raw.hung_up()
    await eventually(lambda: not secure.cluster.connections("a"))


async def test_a_client_that_never_shakes_hands_is_disconnected(tmp_path: Path) -> None:
    made = Secure(tmp_path)
    settings = made.ca.settings(made.ca.issue("bookie"))
    await made.cluster.start("a", tls_handshake_timeout_s=0.1, **settings)
    raw = await RawBookKeeper.connect(made.cluster)
    assert await raw.ask(m.StartTlsRequest()) == m.StartTlsResponse()
    assert await raw.hung_up()
    await eventually(lambda: not made.cluster.connections("a"))
    await made.cluster.stop()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_whose_place_is_taken_in_its_handshake_counts_no_more(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Loops don't say then that the connection is lost: it would count towards `connections_max` for ever."""

    async def talk() -> None:
        made = Secure(tmp_path)
        settings = made.ca.settings(made.ca.issue("bookie"))
        await made.cluster.start("a", tls_handshake_timeout_s=DEADLINE_S, new_connections_max=1, **settings)
        silent = await RawBookKeeper.connect(made.cluster)
        assert await silent.ask(m.StartTlsRequest()) == m.StartTlsResponse()
        newer = await RawBookKeeper.connect(made.cluster)
        assert await silent.hung_up()
        await eventually(lambda: made.cluster.connections("a") == [newer.near])
        newer.close()
        await made.cluster.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(talk())


async def test_no_more_clients_shake_hands_at_once_than_may(tmp_path: Path) -> None:
    """Each takes a file more than a connection does."""
    made = Secure(tmp_path)
    settings = made.ca.settings(made.ca.issue("bookie"))
    await made.cluster.start("a", tls_handshake_timeout_s=DEADLINE_S, tls_handshakes_max=2, **settings)
    silent = [await RawBookKeeper.connect(made.cluster) for _ in range(3)]
    for raw in silent:
        assert await raw.ask(m.StartTlsRequest()) == m.StartTlsResponse()
    assert await silent[0].hung_up()
    await eventually(lambda: made.cluster.connections("a") == [raw.near for raw in silent[1:]])
    await silent[1].writer.start_tls(made.context())
    assert (await silent[1].read(0)).code == StatusCode.ENOLEDGER
    for raw in silent:
        raw.close()
    await made.cluster.stop()
