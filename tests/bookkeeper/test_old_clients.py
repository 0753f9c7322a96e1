"""Java's clients of older versions on bookies of ours, each with the ZooKeeper client that it was released with."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from bkpy.local import LocalCluster
from bkpy.local.process import free_port
from tests.bookkeeper.java_cluster import JavaClient, compiled, fetched
from tests.bookkeeper.ledgers import DIGESTS, as_java_reads, check_what_java_makes, closed, written_by_us
from tests.conftest import run_elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.exhaustive

# The oldest writes format 2 of the metadata, and reads no other; it knows bookies by their addresses alone.
OLDEST = "4.8.2"
VERSIONS = (OLDEST, "4.14.7", "4.16.6")
PAYLOADS = [bytes([n % 256]) * (n % 300) for n in range(200)]


@pytest.fixture(scope="module")
def cluster_of_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies of ours whose ids are their addresses, as a bookie's is by default."""
    directory = tmp_path_factory.mktemp("addresses") / "cluster"
    directory.mkdir()
    ports = list[int]()
    while len(ports) < 3:
        ports.append(free_port(ports))
    state = {"zookeeper_port": None, "bookies": {f"127.0.0.1:{port}": port for port in ports}}
    (directory / "cluster.json").write_text(json.dumps(state))
    cluster = LocalCluster(directory, 3, {"protocol": "bookkeeper"})
    try:
        run_elsewhere(cluster.start())
        assert [bookie.address for bookie in cluster.bookies] == [bookie.id for bookie in cluster.bookies]
        yield cluster
    finally:
        run_elsewhere(cluster.kill())


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def old(cluster_of_addresses: LocalCluster, version: str, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    directory = tmp_path_factory.mktemp(f"client-{version}")
    uri = cluster_of_addresses.connect_string.replace("zk://", "zk+hierarchical://", 1)
    return JavaClient(uri, compiled(directory, fetched(version, directory)))


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_a_ledgers_life(old: JavaClient, version: str, protocol: str) -> None:
    """Created, followed by each way of asking for its last add confirmed, read, fenced, closed, and deleted."""
    # The oldest sends explicit ones by v3 on its connection of v2, which doesn't take v3's answer.
    explicit_lac = (version, protocol) != (OLDEST, "v2")
    lines = await asyncio.to_thread(old.run, "live", protocol, explicit_lac)
    assert {line[1] for line in lines} == DIGESTS.keys()
    for _, _, *life in lines:
        assert life == ["9", "9", "10" if explicit_lac else "9", "true", "fenced", "9", "deleted"]


async def test_our_client_reads_tails_and_recovers_what_it_wrote(
    cluster_of_addresses: LocalCluster, old: JavaClient
) -> None:
    await check_what_java_makes(cluster_of_addresses.connect_string, old)


async def test_it_reads_and_recovers_what_our_client_wrote(
    cluster_of_addresses: LocalCluster, old: JavaClient, version: str
) -> None:
    uri = cluster_of_addresses.connect_string
    written = await written_by_us(uri, PAYLOADS)
    if version == OLDEST:
        with pytest.raises(AssertionError, match=r"BKException\$ZKException"):  # what it makes of unreadable metadata
            await asyncio.to_thread(as_java_reads, old, written)
        return
    abandoned = await written_by_us(uri, PAYLOADS, close=False)
    read = await asyncio.to_thread(as_java_reads, old, written)
    assert read == {ledger_id: closed(PAYLOADS) for ledger_id, _ in written}
    recovered = await asyncio.to_thread(as_java_reads, old, abandoned, recover=True)
    assert recovered == {ledger_id: closed(PAYLOADS) for ledger_id, _ in abandoned}
