"""Directories that join a restored cluster: only all of them, whole and of one bookie, and every ledger in limbo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.support import INSTANCE, Batch, Host, add, sim_runtime
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.protocol.restore.restoring import Restore, RestoreState
from bkpy.storage.adopt import adopt_storage
from bkpy.storage.identity import COOKIE_NAME, decode_cookie, read_cookie, write_cookie
from bkpy.storage.index.index import SHARD_KEY
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

RESTORED = "22222222-2222-3333-4444-555555555555"
RESTORE = Restore(RestoreState.RESTORED, RESTORED, INSTANCE, "checksum", 0, 10)
PATHS = ("/b/journal0", "/b/journal1", "/b/ledgers0", "/b/ledgers1")
INDEXES = ("/b/ledgers0/index", "/b/ledgers1/index")


@dataclass
class Joining:
    """A stopped bookie of the former cluster, with a ledger in each of two directories."""

    host: Host = field(default_factory=lambda: Host(settings=bookie_settings(journals=2, ledgers=2)))
    registered: list[bytes] = field(default_factory=list)

    async def use(self) -> None:
        storage = await self.host.boot()
        for ledger_id in (1, 2):
            await add(storage, Batch(ledger_id, 0, 5))
        await storage.close()

    async def join(self) -> bool:
        async def register(cookie: bytes) -> None:
            self.registered.append(cookie)

        runtime = sim_runtime(self.host.disk)
        return await adopt_storage(self.host.settings, runtime, RESTORE, self.host.cookie, register)

    async def boot(self) -> LedgerStorage:
        """In the restored cluster."""
        return await open_storage(
            self.host.settings,
            sim_runtime(self.host.disk),
            instance_id=RESTORED,
            expected_cookie=self.registered[-1],
        )

    async def refused(
        self, error: type[IdentityError | CorruptDataError], message: str
    ) -> IdentityError | CorruptDataError:
        """Why it may not join; it is as it was."""
        with pytest.raises(error, match=message) as refusal:
            await self.join()
        assert not self.registered
        cookies = [read_cookie(self.host.disk, path) for path in PATHS]
        assert all(cookie is None or cookie.instance_id == INSTANCE for cookie in cookies)
        return refusal.value


@pytest.fixture
async def joining() -> Joining:
    bookie = Joining()
    await bookie.use()
    return bookie


async def test_all_ledgers_of_all_directories_are_in_limbo(joining: Joining) -> None:
    assert await joining.join()
    assert decode_cookie(joining.registered[-1], "the metadata store").instance_id == RESTORED
    storage = await joining.boot()
    states = await storage.states((1, 2))
    assert [state is not None and state.limbo for state in states.values()] == [True, True]
    await storage.close()


async def test_an_adoption_is_repeated(joining: Joining) -> None:
    assert await joining.join()
    cookie = read_cookie(joining.host.disk, "/b/journal1")
    assert cookie is not None
    write_cookie(joining.host.disk, "/b/journal1", cookie._replace(instance_id=INSTANCE))
    assert await joining.join()
    assert not await joining.join()
    assert len(set(joining.registered)) == 1
    await (await joining.boot()).close()


async def test_directories_of_another_bookie_do_not_join(joining: Joining) -> None:
    joining.host.settings = joining.host.settings.model_copy(update={"bookie_id": "bookie-2"})
    assert not await joining.join()
    assert not joining.registered


@pytest.mark.parametrize("path", ["/b/journal1", "/b/ledgers0"])
async def test_a_directory_without_its_cookie_is_named(joining: Joining, path: str) -> None:
    joining.host.disk.unlink(f"{path}/{COOKIE_NAME}")
    refusal = await joining.refused(IdentityError, "has no cookie, or isn't among the settings' directories")
    assert refusal.path == path


async def test_a_directory_that_the_settings_leave_out_is_named(joining: Joining) -> None:
    joining.host.settings = joining.host.settings.model_copy(update={"ledger_directories": ["/b/ledgers0"]})
    refusal = await joining.refused(IdentityError, "restore the settings")
    assert refusal.path == "/b/ledgers1"


async def test_directories_whose_cookies_disagree_do_not_join(joining: Joining) -> None:
    cookie = read_cookie(joining.host.disk, "/b/journal1")
    assert cookie is not None
    other = cookie._replace(journal_directories=("/b/journal1", "/b/journal0"))
    write_cookie(joining.host.disk, "/b/journal1", other)
    refusal = await joining.refused(IdentityError, "disagree: `bkpy bookie cookie show` tells in what")
    assert refusal.path == "/b/journal1"


async def test_an_index_that_is_gone_is_named(joining: Joining) -> None:
    joining.host.disk.unlink(f"{INDEXES[1]}/data.mdb")
    refusal = await joining.refused(IdentityError, "this directory's index is gone")
    assert refusal.path == INDEXES[1]


async def test_an_index_whose_own_row_is_damaged_is_named(joining: Joining) -> None:
    _put(joining.host, INDEXES[1], b"no row")
    refusal = await joining.refused(CorruptDataError, "rebuild-index")
    assert refusal.path == INDEXES[1]


async def test_an_index_of_another_directory_is_named(joining: Joining) -> None:
    store = sim_runtime(joining.host.disk).store.open(INDEXES[0])
    with store.read() as txn:
        row = txn.get(SHARD_KEY)
    store.close()
    assert row is not None
    _put(joining.host, INDEXES[1], row)
    refusal = await joining.refused(IdentityError, "not the one that the cookie names")
    assert refusal.path == INDEXES[1]


@pytest.mark.parametrize("instance", [INSTANCE, RESTORED, "another"])
async def test_lost_directories_join_only_if_the_bookie_was_of_the_former_cluster(instance: str) -> None:
    bookie = Joining()
    await bookie.use()
    assert bookie.host.cookie is not None
    known = decode_cookie(bookie.host.cookie, "the metadata store")
    bookie.host.cookie = known._replace(instance_id=instance).encode()
    for path in PATHS:
        bookie.host.disk.unlink(f"{path}/{COOKIE_NAME}")
    assert not await bookie.join()
    assert [decode_cookie(cookie, "x").instance_id for cookie in bookie.registered] == [RESTORED] * (
        instance == INSTANCE
    )


def _put(host: Host, path: str, row: bytes) -> None:
    store = sim_runtime(host.disk).store.open(path)
    with store.write() as txn:
        txn.put(SHARD_KEY, row)
    store.close()
