"""The right error, with ledger, entry and bookie in it, within a bounded time."""

import asyncio
import logging
from pathlib import Path

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import free_port

BOUND_S = 20.0  # generous: what is tested is that nothing hangs


@pytest.fixture
async def client(cluster: LocalCluster):
    async with bkpy.connect(cluster.connect_string) as connected:
        yield connected


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
async def test_wrong_quorum_sizes(client: bkpy.Client, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(bkpy.ConfigError, match="ensemble_size >= write_quorum >= ack_quorum") as caught:
        await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    assert isinstance(caught.value, ValueError)


async def test_wrong_password(client: bkpy.Client) -> None:
    writer = await client.create_ledger(password=b"right")
    await writer.append(b"x")
    await writer.close()
    with pytest.raises(bkpy.UnauthorizedError, match=f"ledger {writer.ledger_id}"):
        await client.open_ledger(writer.ledger_id, password=b"wrong")
    with pytest.raises(bkpy.UnauthorizedError, match="has a password, and none was given"):
        await client.open_ledger(writer.ledger_id)
    with pytest.raises(bkpy.ConfigError, match=r"^password must be bytes, not str$"):
        await client.create_ledger(password="right")  # type: ignore[arg-type]


async def test_an_address_that_is_not_zookeepers(cluster: LocalCluster) -> None:
    with pytest.raises(bkpy.MetadataUnavailableError, match="no ZooKeeper server"):
        await bkpy.connect(f"zk://{cluster.bookies[0].address}/ledgers", metadata_timeout_s=1.0)


async def test_unknown_ledger(client: bkpy.Client) -> None:
    for call in (client.open_ledger(2**40), client.ledger_metadata(2**40), client.delete_ledger(2**40)):
        with pytest.raises(bkpy.NoSuchLedgerError, match=str(2**40)):
            await call


async def test_an_entry_over_the_limit_is_refused_at_the_call(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    too_large = b"x" * ((4 << 20) + 1)
    with pytest.raises(bkpy.FrameTooLargeError, match=f"ledger {writer.ledger_id}, entry 0"):
        await writer.append(too_large)
    with pytest.raises(bkpy.FrameTooLargeError):
        writer.append_nowait(too_large)
    with pytest.raises(bkpy.FrameTooLargeError):
        await writer.append_batch([b"fits", too_large])
    assert await writer.append(b"fits") == 0  # nothing was written of what was refused
    await writer.close()


async def test_an_entry_that_is_no_bytes(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    with pytest.raises(bkpy.ConfigError, match="an entry is bytes, not str"):
        await writer.append("text")  # type: ignore[arg-type]
    await writer.close()


async def test_an_unknown_digest(client: bkpy.Client) -> None:
    with pytest.raises(bkpy.ConfigError, match="md5"):
        await client.create_ledger(digest="md5")


async def test_too_few_bookies(client: bkpy.Client) -> None:
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(bkpy.NotEnoughBookiesError, match="needs 4 bookies, 3 are available"):
            await client.create_ledger(ensemble_size=4, allow_absent_bookies=False)


async def test_a_range_past_the_end(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    with pytest.raises(bkpy.NoSuchEntryError, match="entry 1 is past the last entry, 0"):
        [entry async for entry in reader.read(0, 1)]
    with pytest.raises(bkpy.ConfigError):
        [entry async for entry in reader.read(-1)]


async def test_no_zookeeper() -> None:
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(bkpy.MetadataUnavailableError):
            await bkpy.connect(f"zk://127.0.0.1:{free_port()}/ledgers", metadata_timeout_s=1.0)


async def test_no_such_cluster(cluster: LocalCluster) -> None:
    uri = cluster.connect_string.replace("/ledgers", "/elsewhere")
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(bkpy.NoSuchClusterError, match="bkpy cluster init"):
            await bkpy.connect(uri)


@pytest.mark.parametrize("uri", ["", "http://x/y", "zk://", "zk://host:port/ledgers", "127.0.0.1:2181"])
async def test_a_uri_that_is_none(uri: str) -> None:
    with pytest.raises(bkpy.ConfigError):
        await bkpy.connect(uri)


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(bkpy.ConfigError, match="write_window_bytes"):
        bkpy.connect("zk://127.0.0.1/ledgers", write_window_byte=1)


async def test_a_closed_client(cluster: LocalCluster) -> None:
    client = await bkpy.connect(cluster.connect_string)
    writer = await client.create_ledger()
    await writer.append(b"x")
    pending = writer.append_nowait(b"y")
    await asyncio.sleep(0)  # it leaves at the end of this turn of the loop
    unsent = writer.append_nowait(b"z")
    await client.close()
    await client.close()
    assert isinstance(pending.exception(), bkpy.ClientClosedError)
    assert pending.exception().outcome_unknown
    assert isinstance(unsent.exception(), bkpy.ClientClosedError)
    assert not unsent.exception().outcome_unknown
    for call in (client.create_ledger(), client.open_ledger(0), client.ledger_metadata(0)):
        with pytest.raises(bkpy.ClientClosedError):
            await call
    async with bkpy.connect(cluster.connect_string) as other:
        assert (await other.ledger_metadata(writer.ledger_id)).state == "OPEN"


async def test_a_client_of_another_cluster_is_not_served(cluster: LocalCluster, tmp_path: Path) -> None:
    """An address that now belongs to somebody else is noticed in the handshake."""
    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.client.bookies.dialling import Dialler
    from bkpy.config.client import client_settings
    from bkpy.runtime.process import RealClock
    from bkpy.runtime.slow_requests import SlowRequests
    from bkpy.runtime.system import real_runtime

    async def address(_: str) -> str:
        return cluster.bookies[0].address

    for instance, bookie_id in [("another-cluster", cluster.bookies[0].id), ("", "another-bookie")]:
        channel = BookieChannel(
            bookie_id,
            address,
            Dialler(client_settings()),
            client_settings(),
            real_runtime(),
            instance_id=instance,
            software="test",
            key_of=lambda _: b"",
            next_id=iter(range(1, 100)).__next__,
            slow=SlowRequests(logging.getLogger(), RealClock(), 0),
        )
        with pytest.raises(bkpy.BookieUnavailableError, match="another"):
            async with asyncio.timeout(BOUND_S):
                await channel.connect()
        await channel.close()
