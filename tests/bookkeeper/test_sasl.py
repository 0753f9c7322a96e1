"""Authentication by SASL, which bkpy doesn't have: what clients and operators learn where one side asks for it."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.errors import BookieUnavailableError, LedgerRecoveryError, UnauthorizedError
from bkpy.local import LocalCluster
from tests.bookkeeper.java_cluster import JavaBookies, JavaClient, compiled, lines_of, said
from tests.conftest import run_elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.local.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.exhaustive

PATIENCE_S = 60.0
JAAS = f"-Djava.security.auth.login.config={Path(__file__).parent / 'jaas.conf'}"
CLIENT = {"clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"}
BOOKIE = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
    "saslJaasClientAllowedIds": ".*hd.*",
}


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_a_client_of_javas_that_would_authenticate_is_served(tmp_path: Path, protocol: str) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text(lines_of(CLIENT))
    class_path = compiled(tmp_path)
    async with LocalCluster(tmp_path / "cluster", 3, {"protocol": "bookkeeper"}) as cluster:
        uri = cluster.connect_string.replace("zk://", "zk+null://")
        java = JavaClient(uri, class_path, f"-Dsettings={conf}", JAAS)
        output = await asyncio.to_thread(java.output, "try", protocol)
        assert said(output) == [["read", "0", "an", "entry"]]
        assert "Authentication is not enabled" in output.decode(), "the client knows, too"
        for bookie in cluster.bookies:
            assert "asks for authentication by plugin sasl, which bkpy doesn't have" in bookie.log_path.read_text()


@pytest.fixture(scope="module")
def theirs(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBookies]:
    """A bookie of Java's that asks for SASL."""
    root = f"/bk-{uuid.uuid4().hex}"
    bookies = JavaBookies(zookeeper.port, root, tmp_path_factory.mktemp("java"), 1, BOOKIE, (JAAS,))
    try:
        run_elsewhere(bookies.start())
        yield bookies
    finally:
        run_elsewhere(bookies.kill())


async def test_our_client_says_that_a_bookie_asks_for_sasl(theirs: JavaBookies) -> None:
    async with asyncio.timeout(PATIENCE_S), bkpy.connect(theirs.uri) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(BookieUnavailableError, match="SASL"):
            await writer.append(b"x")
        with pytest.raises(UnauthorizedError, match="SASL"):
            await client.open_ledger(writer.ledger_id)
        with pytest.raises(LedgerRecoveryError, match="SASL"):
            await client.recover_ledger(writer.ledger_id)
