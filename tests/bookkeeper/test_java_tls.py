"""START_TLS between Java's client and bookies of ours, and between our client and Java's bookies."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.errors import BookieUnavailableError, TlsError
from bkpy.local import LocalCluster
from tests.bookkeeper.java_cluster import JavaBookies, JavaClient, compiled, lines_of, said
from tests.bookkeeper.test_our_client import PASSWORD, as_java_reads, closed, entries_of
from tests.certificates import Authority
from tests.conftest import run_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from tests.certificates import Issued

pytestmark = pytest.mark.exhaustive

PROTOCOLS = ("v2", "v3")
FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
PATIENCE_S = 60.0
ENTRIES = [b"%d" % n for n in range(100)]
# Java closes with what it hasn't read: on a busy machine the reset is there before its alert was read.
RESET = "Connection reset by peer|may refuse this side's certificate"


def trusting(ca: Path) -> dict[str, object]:
    """Java's settings for TLS. A client with these alone has no certificate."""
    return {"tlsProviderFactoryClass": FACTORY, "tlsTrustStoreType": "PEM", "tlsTrustStore": ca}


def known_by(issued: Issued) -> dict[str, object]:
    return {"tlsKeyStoreType": "PEM", "tlsKeyStore": issued.key, "tlsCertificatePath": issued.certificate}


MUTUAL = {"tlsClientAuthentication": "true"}


class Secure:
    """Bookies of ours with certificates of `ca`, and clients of Java's."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory / "ca")
        self.others = Authority(directory / "others", "another-ca")
        settings = {"protocol": "bookkeeper", **self.ca.settings(self.ca.issue("bookie"))}
        self.cluster = LocalCluster(directory / "cluster", 3, settings)
        self._directory = directory
        self._class_path = compiled(directory)

    def client(self, settings: Mapping[str, object]) -> JavaClient:
        conf = self._directory / f"{uuid.uuid4().hex}.conf"
        conf.write_text(lines_of(settings))
        uri = f"zk+null://127.0.0.1:{self.cluster.zookeeper.port}/ledgers"
        return JavaClient(uri, self._class_path, f"-Dsettings={conf}")

    def good(self) -> dict[str, object]:
        return {**trusting(self.ca.file), **MUTUAL, **known_by(self.ca.issue("client"))}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("secure"))
    try:
        run_elsewhere(made.cluster.start())
        yield made
    finally:
        run_elsewhere(made.cluster.kill())


async def test_java_writes_recovers_and_reads_by_tls(secure: Secure) -> None:
    java = secure.client(secure.good() | {"tlsHostnameVerificationEnabled": "true"})
    made = [(int(i), digest, end) for i, digest, _, end in await asyncio.to_thread(java.run, "make")]
    assert len(made) == 32
    expected = {ledger_id: closed(entries_of(ledger_id)) for ledger_id, _, _ in made}
    left_open = [(ledger_id, digest) for ledger_id, digest, end in made if end == "open"]
    *ours, last = left_open
    for protocol, some in zip(PROTOCOLS, (ours[::2], ours[1::2]), strict=True):
        words = [word for ledger in some for word in ledger]
        found = await asyncio.to_thread(java.run, "recover", protocol, *words)
        assert {int(line[0]): line[1:] for line in found} == {ledger_id: expected[ledger_id] for ledger_id, _ in some}
    mine = secure.ca.settings(secure.ca.issue("ours"))
    async with bkpy.connect(secure.cluster.connect_string, **mine) as client:
        reader = await client.recover_ledger(last[0], password=PASSWORD)
        assert [entry.data async for entry in reader.read()] == entries_of(last[0])
    assert await asyncio.to_thread(as_java_reads, java, [ledger[:2] for ledger in made]) == expected


# By what is wrong with a client: its settings, what BookKeeper's client raises and logs, and what the bookie logs.
NOT_ENOUGH = "BKNotEnoughBookiesException"
REFUSED: dict[str, tuple[Callable[[Secure], dict[str, object]], str, str, str]] = {
    "in the clear": (
        lambda _: {},
        "BKUnauthorizedAccessException",
        "Unauthorized access exception on write",
        "it sends requests without TLS",
    ),
    "without a certificate": (
        lambda secure: trusting(secure.ca.file),
        NOT_ENOUGH,
        "TLSV1_ALERT_CERTIFICATE_REQUIRED",
        "the client has shown no certificate",
    ),
    "of another CA": (
        lambda secure: secure.good() | known_by(secure.others.issue("strange")),
        NOT_ENOUGH,
        "TLSV1_ALERT_UNKNOWN_CA",
        "the client's certificate is signed by none of the CAs",
    ),
    "expired": (
        lambda secure: secure.good() | known_by(secure.ca.issue("old", ends=-datetime.timedelta(hours=1))),
        NOT_ENOUGH,
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "the client's certificate has expired",
    ),
    "distrusting": (
        lambda secure: secure.good() | trusting(secure.others.file),
        NOT_ENOUGH,
        "unable to find valid certification path to requested target",
        "Java says so of a certificate that it doesn't trust",
    ),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("bad", REFUSED)
async def test_a_bad_client_of_javas_and_the_bookie_say_why(secure: Secure, protocol: str, bad: str) -> None:
    settings, raised, logged, complaint = REFUSED[bad]
    output = await asyncio.to_thread(secure.client(settings(secure)).output, "try", protocol)
    assert said(output) == [["refused", raised]]
    assert logged in output.decode()
    assert complaint in "".join(bookie.log_path.read_text() for bookie in secure.cluster.bookies)


class Theirs:
    """A bookie of Java's with TLS, that asks clients for a certificate or doesn't."""

    def __init__(self, zookeeper_port: int, directory: Path, *, mutual: bool) -> None:
        self.mutual = mutual
        self.ca = Authority(directory / "ca")
        settings = trusting(self.ca.file) | known_by(self.ca.issue("bookie")) | (MUTUAL if mutual else {})
        self.bookies = JavaBookies(zookeeper_port, f"/bk-{uuid.uuid4().hex}", directory, 1, settings)

    async def written_and_recovered(self, **settings: str) -> list[bytes]:
        """By our client with these settings."""
        async with asyncio.timeout(PATIENCE_S), bkpy.connect(self.bookies.uri, **settings) as client:
            writer = await client.create_ledger(
                ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD, digest="crc32c"
            )
            await writer.append_batch(ENTRIES)
            reader = await client.recover_ledger(writer.ledger_id, password=PASSWORD)
            return [entry.data async for entry in reader.read()]


@pytest.fixture(scope="module", params=[True, False], ids=["mutual", "of the bookie alone"])
def theirs(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Theirs]:
    made = Theirs(zookeeper.port, tmp_path_factory.mktemp("theirs"), mutual=request.param)
    try:
        run_elsewhere(made.bookies.start())
        yield made
    finally:
        run_elsewhere(made.bookies.kill())


async def test_our_client_on_a_bookie_of_javas(theirs: Theirs) -> None:
    assert await theirs.written_and_recovered(**theirs.ca.settings(theirs.ca.issue("ours"))) == ENTRIES
    assert await theirs.written_and_recovered() == ENTRIES, "a bookie of Java's serves clients in the clear, too"


async def test_our_client_without_a_certificate_on_a_bookie_of_javas(theirs: Theirs) -> None:
    if not theirs.mutual:
        assert await theirs.written_and_recovered(**theirs.ca.settings()) == ENTRIES
        return
    with pytest.raises(BookieUnavailableError, match=f"the bookie takes only clients with a certificate|{RESET}"):
        await theirs.written_and_recovered(**theirs.ca.settings())


async def test_our_client_and_a_bookie_of_javas_with_another_authority(theirs: Theirs, tmp_path: Path) -> None:
    others = Authority(tmp_path, "another-ca")
    strange = others.issue("strange")
    with pytest.raises(TlsError, match="the bookie's certificate is signed by none of the CAs"):
        await theirs.written_and_recovered(**others.settings(strange))
    if theirs.mutual:
        with pytest.raises(
            BookieUnavailableError, match=f"Java says so of a certificate that it doesn't trust|{RESET}"
        ):
            await theirs.written_and_recovered(**theirs.ca.settings(strange))
