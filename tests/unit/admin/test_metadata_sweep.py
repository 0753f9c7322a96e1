"""The sweep finds unreadable lists of logs and cookies, in steps, and forgets what was repaired or is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests import hooks

from bkpy.admin.client import AdminClient
from bkpy.admin.metadata_sweep import MetadataSweep
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata import paths

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.metadata.cluster import Cluster

BAD = (b"", b"\xff", b"[]", b"{}", b"null", b"{", b'{"version": 99}')


async def swept(five: InProcess, *logs: str) -> tuple[AdminClient, Cluster, MetadataSweep]:
    client = await five.client()
    admin = AdminClient(client)
    for name in logs:
        await admin.create_log(name)
    cluster = hooks.cluster_of(client)
    return admin, cluster, MetadataSweep(cluster, RecoverySettings(audit_reads_at_once=2))


async def overwrite(cluster: Cluster, path: str, value: bytes) -> bytes:
    before, version = await cluster.store.get(path)
    await cluster.store.put(path, value, version)
    return before


@pytest.mark.parametrize("value", BAD)
async def test_what_is_unreadable_is_found_and_nothing_else(five: InProcess, value: bytes) -> None:
    admin, cluster, sweep = await swept(five, "orders", "visits")
    await sweep.step(100)
    assert (sweep.unreadable_logs, sweep.unreadable_cookies, sweep.unexamined) == ({}, {}, 0)
    list_before = await overwrite(cluster, paths.log(cluster.root, "orders"), value)
    cookie_before = await overwrite(cluster, paths.cookie(cluster.root, "b"), value)
    await sweep.step(100)
    assert [*sweep.unreadable_logs, *sweep.unreadable_cookies] == ["orders", "b"]
    assert all(sweep.unreadable_logs.values())
    codes = [(f.code, f.subject) for f in (await admin.health()).findings if f.code.startswith("unreadable")]
    assert codes == [("unreadable-log", ""), ("unreadable-cookie", "b")]
    await overwrite(cluster, paths.log(cluster.root, "orders"), list_before)
    await overwrite(cluster, paths.cookie(cluster.root, "b"), cookie_before)
    await sweep.step(100)
    assert (sweep.unreadable_logs, sweep.unreadable_cookies) == ({}, {})


async def test_the_cookie_of_another_bookie_is_no_cookie(five: InProcess) -> None:
    _, cluster, sweep = await swept(five)
    value, _ = await cluster.store.get(paths.cookie(cluster.root, "a"))
    await overwrite(cluster, paths.cookie(cluster.root, "b"), value)
    await sweep.step(100)
    assert sweep.unreadable_cookies == {"b": "it is of bookie a"}


async def test_steps_read_as_much_as_they_may_and_say_what_is_left(five: InProcess) -> None:
    _, cluster, sweep = await swept(five, *"uvwxyz")
    await overwrite(cluster, paths.log(cluster.root, "z"), b"{")
    left = []
    for _ in range(5):
        await sweep.step(3)
        left.append((sweep.unexamined, list(sweep.unreadable_logs)))
    # Five cookies and six logs; the next round begins, and what is known stays.
    assert left == [(8, []), (5, []), (2, []), (0, ["z"]), (0, ["z"])]


async def test_what_is_gone_is_forgotten(five: InProcess) -> None:
    _, cluster, sweep = await swept(five, "z")
    await overwrite(cluster, paths.log(cluster.root, "z"), b"{")
    await sweep.step(100)
    assert list(sweep.unreadable_logs) == ["z"]
    for node in sorted(await tree(cluster, paths.log(cluster.root, "z")), reverse=True):
        await cluster.store.delete(node, None)
    await sweep.step(100)
    assert sweep.unreadable_logs == {}


async def tree(cluster: Cluster, path: str) -> list[str]:
    children = await cluster.store.children(path)
    return [path, *[one for child in children for one in await tree(cluster, f"{path}/{child}")]]


async def test_a_step_that_fails_is_done_again(five: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cluster, sweep = await swept(five, "y", "z")
    await overwrite(cluster, paths.log(cluster.root, "z"), b"{")
    get = cluster.store.get

    async def away(path: str) -> tuple[bytes, int]:
        if path == paths.cookie(cluster.root, "d"):
            raise MetadataUnavailableError("it is away")
        return await get(path)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "get", away)
        with pytest.raises(MetadataUnavailableError):
            await sweep.step(100)
    assert sweep.unexamined == 5
    await sweep.step(100)
    assert (list(sweep.unreadable_logs), sweep.unexamined) == (["z"], 0)
