"""START_TLS: what a client with certificates says in the clear, and what it doesn't."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
from tests.certificates import Authority
from tests.in_process import contents
from tests.unit.client.bookkeeper.their_bookies import TheirCluster

from bkpy.errors import BookieUnavailableError, TlsError
from bkpy.local.process import free_port
from bkpy.protocol.bookkeeper.messages import StartTlsRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.real("TLS")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def served(authority: Authority) -> ssl.SSLContext:
    issued = authority.issue("bookie")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate, issued.key)
    return context


@pytest.fixture
async def theirs() -> AsyncIterator[TheirCluster]:
    cluster = TheirCluster()
    yield cluster
    await cluster.stop()


def ports() -> list[int]:
    taken: list[int] = []
    for _ in range(3):
        taken.append(free_port(taken))
    return taken


async def test_a_ledger_is_read_and_recovered_by_tls(
    theirs: TheirCluster, served: ssl.SSLContext, authority: Authority
) -> None:
    await theirs.start(ports=ports(), tls=served)
    payloads = theirs.write(7, 50, closed=False)
    client = await theirs.client(tls_ca_file=str(authority.file))
    reader = await client.recover_ledger(7)
    assert [entry.data async for entry in reader.read()] == payloads
    for bookie in theirs.bookies.values():
        assert isinstance(bookie.asked[0], StartTlsRequest)


async def test_a_bookie_may_have_no_newer_tls_than_1_2(
    theirs: TheirCluster, served: ssl.SSLContext, authority: Authority
) -> None:
    """As Java's with `tlsEnabledProtocols=TLSv1.2`, or with an older JDK."""
    served.maximum_version = ssl.TLSVersion.TLSv1_2
    await theirs.start(ports=ports(), tls=served)
    payloads = theirs.write(7, 5)
    assert await contents(await theirs.client(tls_ca_file=str(authority.file)), 7) == payloads


async def test_a_bookie_without_tls_is_refused(theirs: TheirCluster, authority: Authority) -> None:
    await theirs.start(ports=ports())
    theirs.write(7, 5)
    client = await theirs.client(tls_ca_file=str(authority.file), read_timeout_s=1)
    with pytest.raises(TlsError, match="no TLS"):
        await contents(client, 7)
    assert {type(request) for bookie in theirs.bookies.values() for request in bookie.asked} == {StartTlsRequest}


async def test_a_certificate_of_another_authority_is_refused(
    theirs: TheirCluster, served: ssl.SSLContext, tmp_path: Path
) -> None:
    await theirs.start(ports=ports(), tls=served)
    theirs.write(7, 5)
    client = await theirs.client(tls_ca_file=str(Authority(tmp_path).file), read_timeout_s=1)
    with pytest.raises(TlsError):
        await contents(client, 7)


async def test_a_bookie_that_hangs_up_behind_the_handshake_may_refuse_the_certificate(
    theirs: TheirCluster, served: ssl.SSLContext, authority: Authority
) -> None:
    """Java's close right behind their alert, which is lost where the client has sent a request by then."""
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_verify_locations(authority.file)
    await theirs.start(ports=ports(), tls=served)
    theirs.write(7, 5)
    client = await theirs.client(tls_ca_file=str(authority.file), read_timeout_s=1)
    with pytest.raises(BookieUnavailableError, match="may refuse this side's certificate"):
        await contents(client, 7)


async def test_bytes_in_the_clear_behind_the_answer_are_refused(
    theirs: TheirCluster, served: ssl.SSLContext, authority: Authority
) -> None:
    await theirs.start(ports=ports(), tls=served)
    theirs.write(7, 5)
    for bookie in theirs.bookies.values():
        bookie.behind_start_tls = b"\0\0\1\0\n"  # a part of a frame, which ends in what follows by TLS
    client = await theirs.client(tls_ca_file=str(authority.file), read_timeout_s=1)
    with pytest.raises(TlsError, match="in the clear"):
        await contents(client, 7)
