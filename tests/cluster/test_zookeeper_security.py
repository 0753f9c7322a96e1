"""A ZooKeeper that lets not everybody in: its TLS port, passwords, and the access control lists of what is created."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.certificates import Authority
from tests.cluster.secure_zookeeper import SecureZooKeeper
from tests.command import bkpy as command
from tests.conftest import run_elsewhere
from tests.waiting import eventually

import bkpy
from bkpy.bookie.node import BookieNode
from bkpy.config.client import client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import MetadataUnavailableError, UnauthorizedError
from bkpy.local.process import free_port
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.zookeeper.protection import protect_tree
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.replication.auto_recovery import AutoRecovery
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

DEADLINE_S = 60
AUTH = "bkpy:very-secret"
OTHER_AUTH = "bkpy:another-secret"


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secure(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    server = SecureZooKeeper(tmp_path_factory.mktemp("secure") / "zookeeper", ca, ca.issue("zookeeper", ("127.0.0.1",)))
    try:
        run_elsewhere(server.start())
        yield server
    finally:
        run_elsewhere(server.stop())


def with_tls(ca: Authority, *, certificate: bool = True) -> dict[str, str]:
    """The settings for ZooKeeper that trust this CA and show a certificate of it, or none."""
    settings = ca.settings(ca.issue("bkpy") if certificate else None)
    return {f"zookeeper_{name}": value for name, value in settings.items()}


async def test_a_cluster_on_zookeepers_tls_port(secure: SecureZooKeeper, ca: Authority, tmp_path: Path) -> None:
    uri = f"zk://127.0.0.1:{secure.port}/ledgers"
    settings = with_tls(ca)
    variables = {f"BKPY_{name.upper()}": value for name, value in settings.items()}
    await asyncio.to_thread(command, "cluster", "init", uri=uri, **variables)
    async with bookie(uri, tmp_path, settings), bkpy.connect(uri, **settings) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert await writer.append(b"x") == 0
        await writer.close()


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("another CA", "the server's certificate is signed by none of the CAs"),
        ("another host", "the server's certificate is of another host"),
        ("plain port", "it may speak no TLS at this port"),
        ("no TLS", "speaks TLS at this port: give zookeeper_tls_ca_file"),
        ("no certificate", "takes only clients with a certificate|closed the connection|certificate"),
    ],
)
async def test_who_is_not_trusted_by_zookeeper_is_told_why(
    secure: SecureZooKeeper, ca: Authority, tmp_path: Path, trouble: str, words: str
) -> None:
    host, port, settings = "127.0.0.1", secure.port, with_tls(ca)
    if trouble == "another CA":
        settings["zookeeper_tls_ca_file"] = str(Authority(tmp_path / "other", "other").file)
    elif trouble == "another host":
        host = "localhost"
    elif trouble == "plain port":
        port = secure.plain_port
    elif trouble == "no TLS":
        settings = {}
    else:
        settings = with_tls(ca, certificate=False)
    async with asyncio.timeout(DEADLINE_S):

        async def refusal() -> str:
            with pytest.raises(MetadataUnavailableError) as refused:
                await connect_store(
                    f"zk://{host}:{port}/ledgers",
                    real_runtime(),
                    connect_timeout_s=2.0,
                    settings=client_settings(**settings),
                )
            return str(refused.value)

        # On a busy machine not even one handshake may come to its end within that time.
        await eventually(refusal, "the refusal is explained", until=lambda said: re.search(words, said))
        if trouble == "no TLS":  # said at once, also to those who wait for a server that is still to be started
            with pytest.raises(MetadataUnavailableError, match=r"no ZooKeeper server can be used: .* speaks TLS"):
                await connect_store(
                    f"zk://{host}:{port}/ledgers", real_runtime(), connect_timeout_s=DEADLINE_S, refused_timeout_s=None
                )
        if trouble in ("another CA", "another host", "no certificate"):  # said after refused_timeout_s
            with pytest.raises(MetadataUnavailableError, match=r"can be trusted, or trusts this side: .*certificate"):
                await connect_store(
                    f"zk://{host}:{port}/ledgers",
                    real_runtime(),
                    connect_timeout_s=DEADLINE_S,
                    settings=client_settings(**settings),
                )


async def test_a_certificate_alone_opens_nothing_that_was_made_with_a_password(
    secure: SecureZooKeeper, ca: Authority
) -> None:
    """Whoever made it, and whichever certificate it was that was shown with the password."""
    uri, mine = f"zk://127.0.0.1:{secure.port}/guarded", with_tls(ca)
    other = {f"zookeeper_{name}": value for name, value in ca.settings(ca.issue("other")).items()}
    async with session(uri, **mine, zookeeper_auth=AUTH) as (store, root):
        assert isinstance(store, ZooKeeperStore)
        await init_cluster(store, root)
        async with session(uri, **other, zookeeper_auth=AUTH) as (others, _):
            await others.create(f"{root}/made", b"")
            await store.get(f"{root}/made")
        for again in (False, True):
            for shown in (mine, other):
                async with session(uri, **shown) as (stranger, _):
                    for path in (root, f"{root}/made"):
                        with pytest.raises(UnauthorizedError):
                            await stranger.get(path)
            if not again:
                await protect_tree(store, root, 8, lambda _: None)


# --- passwords and access control lists -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def session(uri: str, **settings: Any) -> AsyncIterator[tuple[MetadataStore, str]]:
    store, root = await connect_store(uri, real_runtime(), settings=client_settings(**settings))
    try:
        yield store, root
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def bookie(uri: str, directory: Path, settings: dict[str, str], name: str = "a") -> AsyncIterator[BookieNode]:
    given = {
        "metadata_uri": uri,
        "bookie_id": name,
        "listen": f"127.0.0.1:{free_port()}",
        "journal_directories": str(directory / name / "journal"),
        "ledger_directories": str(directory / name / "ledgers"),
        **settings,
    }
    runtime = real_runtime()
    loaded = load_bookie_settings(None, {f"BKPY_{key.upper()}": value for key, value in given.items()}, {})
    store, root = await connect_store(uri, runtime, settings=loaded)
    node = BookieNode(
        loaded,
        store,
        root,
        runtime,
        background_service=lambda registry, appended: AutoRecovery(
            loaded, store, root, runtime, name, registry, appended
        ),
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await store.close()


async def open_nodes(uri: str, **auth: str) -> tuple[set[str], set[str]]:
    """All nodes of the tree, as whoever has `auth` sees them, and those of them that everybody may read."""
    nodes: set[str] = set()
    async with session(uri, **auth) as (store, root), session(uri) as (stranger, _):
        waiting = [root]
        while waiting:
            path = waiting.pop()
            nodes.add(path)
            waiting += [f"{path}/{name}" for name in await store.children(path)]
        readable = set()
        for path in nodes:
            with contextlib.suppress(UnauthorizedError):
                await stranger.get(path)
                readable.add(path)
    return nodes, readable


async def use(uri: str, directory: Path, auth: str) -> None:
    """Have bookies and clients create every kind of node that they do."""
    settings = {"zookeeper_auth": auth}
    async with (
        bookie(uri, directory, settings),
        bookie(uri, directory, settings, "b"),
        bkpy.connect(uri, **settings) as client,
    ):
        for _ in range(3):
            async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
                await writer.append(b"x")
        variables = {"BKPY_ZOOKEEPER_AUTH": auth}
        await asyncio.to_thread(command, "autorecovery", "disable", uri=uri, **variables)
        await asyncio.to_thread(command, "autorecovery", "enable", uri=uri, **variables)
        nodes, readable = await open_nodes(uri, zookeeper_auth=auth)
        assert len(nodes) > 15
        assert readable == set()


async def test_what_is_created_with_a_password_is_for_those_who_have_it(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    uri = f"zk://{zookeeper.connect_string}/guarded"
    async with session(uri, zookeeper_auth=AUTH) as (store, root):
        await init_cluster(store, root)
    await use(uri, tmp_path, AUTH)
    for others in ({}, {"zookeeper_auth": OTHER_AUTH}):
        with pytest.raises(UnauthorizedError, match="zookeeper_auth is another one, or not given"):
            await bkpy.connect(uri, **others)
    done = await asyncio.to_thread(command, "ledger", "list", uri=uri, status=1)
    assert b"zookeeper_auth" in done.stderr


@pytest.mark.exhaustive
async def test_a_tree_that_is_there_is_protected_by_a_command(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    uri = f"zk://{zookeeper.connect_string}/protected"
    password = tmp_path / "password"
    password.write_text(f"{AUTH}\n")
    variables = {"BKPY_ZOOKEEPER_AUTH_FILE": str(password)}
    async with session(uri) as (store, root):
        await init_cluster(store, root)
    async with bookie(uri, tmp_path, {}), bkpy.connect(uri, zookeeper_auth=AUTH, zookeeper_acl="open") as client:
        await (await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)).close()
        nodes, readable = await open_nodes(uri)  # also what was created with a password
        assert readable == nodes
    refused = await asyncio.to_thread(command, "cluster", "protect", "--yes", uri=uri, status=1)
    assert b"BKPY_ZOOKEEPER_AUTH" in refused.stderr
    asked = await asyncio.to_thread(command, "cluster", "protect", uri=uri, stdin=b"no\n", status=1, **variables)
    assert b"nothing was changed" in asked.stderr
    await asyncio.to_thread(command, "cluster", "protect", "--yes", uri=uri, **variables)
    nodes, readable = await open_nodes(uri, zookeeper_auth=AUTH)
    assert readable == set()
    await use(uri, tmp_path, AUTH)

    # Another password in its place: first both, then only the new one.
    new = tmp_path / "new"
    new.write_text(OTHER_AUTH)
    await asyncio.to_thread(command, "cluster", "protect", "--yes", "--also", new, uri=uri, **variables)
    for auth in (AUTH, OTHER_AUTH):
        async with bkpy.connect(uri, zookeeper_auth=auth) as client:
            assert [i async for i in client.list_ledgers()]
    variables["BKPY_ZOOKEEPER_AUTH_FILE"] = str(new)
    await asyncio.to_thread(command, "cluster", "protect", "--yes", uri=uri, **variables)
    with pytest.raises(UnauthorizedError):
        await bkpy.connect(uri, zookeeper_auth=AUTH)
    await use(uri, tmp_path, OTHER_AUTH)
