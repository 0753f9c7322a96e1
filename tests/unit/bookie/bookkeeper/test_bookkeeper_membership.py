"""A bookie in a BookKeeper cluster: how it registers, which directories are its own, what it collects."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import collector_of, storage_of
from tests.in_process import ROOT, InProcess
from tests.unit.bookie.bookkeeper.raw import KEY, LEDGER, PASSWORD, RawBookKeeper, entry
from tests.waiting import eventually

from bkpy.config.client import client_settings
from bkpy.errors import ConfigError, IdentityError
from bkpy.metadata.bookkeeper.cookies import BookKeeperCookie
from bkpy.metadata.bookkeeper.service_info import decode_service_info
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.store.outcome import Gone
from bkpy.protocol.bookkeeper.entries import master_key
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.storage.identity import decode_cookie

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.metadata.ledgers.catalog import LedgerCatalog

OK = StatusCode.EOK
COOKIE = f"{ROOT}/cookies/a"


async def catalog_of(cluster: InProcess) -> LedgerCatalog:
    found = await open_cluster(cluster.tree.session(), ROOT, settings=client_settings(), of_bookkeeper=True)
    return found.catalog


async def make_ledger(cluster: InProcess, password: bytes = PASSWORD) -> int:
    """Store the metadata of a new ledger on bookie a; returns its id."""

    def build(ledger_id: int) -> BookKeeperLedgerMetadata:
        return BookKeeperLedgerMetadata(
            ledger_id,
            LedgerState.OPEN,
            1,
            1,
            1,
            "bk-crc32c",
            KEY if password == PASSWORD else b"k" * 20,
            fragments=(Fragment(0, ("a",)),),
            owner_token="5",
            password=password,
        )

    created = await (await catalog_of(cluster)).create(build)
    assert isinstance(created, Created), created
    return created.metadata.ledger_id


# --- registration and cookie ----------------------------------------------------------------------------------------


async def test_a_bookie_registers_as_bookkeepers_clients_look_for_it(cluster: InProcess) -> None:
    store = cluster.tree.session()
    data, _ = await store.get(f"{ROOT}/available/a")
    assert decode_service_info("a", data)["address"] == cluster.node("a").address
    await cluster.node("a").set_read_only(True, "test")
    assert not await store.exists(f"{ROOT}/available/a")
    assert await store.exists(f"{ROOT}/available/readonly/a")


async def test_its_cookie_is_one_of_bookkeepers(cluster: InProcess) -> None:
    stored, _ = await cluster.tree.session().get(COOKIE)
    cookie = BookKeeperCookie.decode("a", stored)
    directory = str(cluster.directory / "a")
    assert cookie.bookie_id == "a"
    assert cookie.instance_id == "11111111-2222-3333-4444-555555555555"
    assert (cookie.journal_directories, cookie.ledger_directories) == (
        f"{directory}/journal",
        (f"{directory}/ledgers",),
    )


async def test_a_bookie_comes_back_with_all_it_had(cluster: InProcess) -> None:
    before = await cluster.tree.session().get(COOKIE)
    raw = await RawBookKeeper.connect(cluster)
    assert await raw.add(0) == OK
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster)
    assert (await again.read(0)).entry == entry(0)
    assert await cluster.tree.session().get(COOKIE) == before
    again.close()


async def test_a_bookie_whose_disks_are_lost_does_not_start_empty(cluster: InProcess) -> None:
    """It would deny what it has acknowledged."""
    await cluster.node("a").stop()
    cluster.lose_disks("a")
    with pytest.raises(IdentityError, match=r"data in it|in use with other directories|no cookie"):
        await cluster.start_node("a")
    with pytest.raises(ConfigError, match="bookkeeper shell recover"):
        await cluster.start_node("a", rebuild=True)
    cluster.nodes.clear()


async def test_the_id_of_one_of_bookkeepers_own_bookies_is_refused(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path, of_bookkeeper=True)
    await cluster.start("")
    theirs = BookKeeperCookie("a", "/j", ("/l",), "11111111-2222-3333-4444-555555555555").encode()
    await cluster.tree.session().create(COOKIE, theirs)
    with pytest.raises(IdentityError, match="one of Apache BookKeeper's own"):
        await cluster.start_node("a")


async def test_directories_that_the_cookie_cannot_name_are_refused(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path / "with\ttab", of_bookkeeper=True)
    with pytest.raises(ConfigError, match="BookKeeper's cookie can't name"):
        await cluster.start("a")


# --- one protocol for life ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_bookkeeper", [True, False])
async def test_a_bookie_speaks_one_protocol_for_life(tmp_path: Path, of_bookkeeper: bool) -> None:
    protocol, other = ("bookkeeper", "bkpy") if of_bookkeeper else ("bkpy", "bookkeeper")
    first = InProcess(tmp_path, of_bookkeeper=of_bookkeeper)
    await first.start("a")
    cookie = decode_cookie(storage_of(first.node("a")).cookie, "the test")
    assert cookie.protocol == protocol
    assert (b"protocol" in cookie.encode()) == of_bookkeeper, "older software reads the cookies of its own bookies"
    await first.stop()
    second = InProcess(tmp_path, of_bookkeeper=not of_bookkeeper)
    second.disks = first.disks
    with pytest.raises(IdentityError, match=f"a bookie with protocol = {protocol}.*the setting is {other}"):
        await second.start("a")


async def test_the_setting_has_to_fit_the_cluster(tmp_path: Path) -> None:
    native = InProcess(tmp_path / "n")
    with pytest.raises(ConfigError, match="bkpy's own, and protocol = bookkeeper"):
        await native.start("a", protocol="bookkeeper")
    theirs = InProcess(tmp_path / "b", of_bookkeeper=True)
    with pytest.raises(ConfigError, match="is one of Apache BookKeeper"):
        await theirs.start("a", protocol="bkpy")


# --- keys and collection --------------------------------------------------------------------------------------------


async def test_the_metadata_decide_whose_key_is_right(cluster: InProcess) -> None:
    ledger = await make_ledger(cluster)
    raw = await RawBookKeeper.connect(cluster)
    stranger = b"s" * 20
    assert (await raw.read(-1, fence=True, key=stranger, ledger=ledger)).code == StatusCode.ENOENTRY
    assert await raw.add(0, ledger=ledger) == OK, "the metadata have this key"
    assert await raw.add(1, key=stranger, ledger=ledger) == StatusCode.EUA
    raw.close()


async def test_metadata_that_have_no_password_refuse_no_key(cluster: InProcess) -> None:
    """Those of old BookKeepers: the first key that came counts, as with Java's bookies, and nothing shows another."""
    ledger = await make_ledger(cluster)
    path = (await catalog_of(cluster)).path_of(ledger)
    store = cluster.tree.session()
    stored, version = await store.get(path)
    metadata = dataclasses.replace(BookKeeperLedgerMetadata.decode(ledger, stored), password=None, kept=b"")
    await store.put(path, metadata.encode(), version)
    raw = await RawBookKeeper.connect(cluster)
    assert await raw.add(0, ledger=ledger) == OK
    for key in (b"s" * 20, master_key(b"")):
        assert await raw.add(1, key=key, ledger=ledger) == StatusCode.EUNKNOWNLEDGERSTATE
        assert (await raw.read(0, fence=True, key=key, ledger=ledger)).code == StatusCode.EUNKNOWNLEDGERSTATE
    assert await raw.add(1, ledger=ledger) == OK, "nor was it fenced"
    raw.close()


async def test_a_ledger_that_is_deleted_from_the_metadata_is_collected(cluster: InProcess) -> None:
    kept, deleted = await make_ledger(cluster), await make_ledger(cluster)
    chosen = 1 << 50  # callers may choose ids: one that is not there says nothing of how old the metadata are
    raw = await RawBookKeeper.connect(cluster)
    for ledger in (kept, deleted, chosen):
        assert await raw.add(0, ledger=ledger) == OK
    assert isinstance(await (await catalog_of(cluster)).delete(deleted), Gone)
    collector = collector_of(cluster.node("a"))
    await eventually(lambda: collector.run is None or collector.run.seconds is not None)
    run = collector.begin()
    assert run is not None
    assert not run.looks_for_over_replicated, "BookKeeper's own replicator has locks of its own"
    await eventually(lambda: run.seconds is not None)
    assert (run.failed, sorted(run.collected)) == ("", [deleted, chosen])
    assert (await raw.read(0, ledger=kept)).code == OK
    assert (await raw.read(0, ledger=deleted)).code == StatusCode.ENOLEDGER
    raw.close()


async def test_a_ledger_that_is_made_again_while_the_former_is_collected_loses_nothing(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that choose ids may choose one again, with the same password."""
    ledger, store = await make_ledger(cluster), cluster.tree.session()
    path = (await catalog_of(cluster)).path_of(ledger)
    stored, _ = await store.get(path)
    raw = await RawBookKeeper.connect(cluster)
    assert await raw.add(0, ledger=ledger) == OK
    assert isinstance(await (await catalog_of(cluster)).delete(ledger), Gone)
    collector, probe = collector_of(cluster.node("a")), cluster.service("a").key_authority.metadata
    await eventually(lambda: collector.run is None or collector.run.seconds is not None)
    looks: list[ProbeState] = []

    async def look_and_make_again(*args: Any, **options: Any) -> Any:
        seen = await look(*args, **options)
        looks.append(seen.state)
        if len(looks) == 2:  # the first one is of how old the metadata are
            await store.create(path, stored)
            assert await raw.add(1, ledger=ledger) == OK
        return seen

    look = probe.look
    monkeypatch.setattr(probe, "look", look_and_make_again)
    run = collector.begin()
    assert run is not None
    await eventually(lambda: run.seconds is not None)
    assert looks == [ProbeState.NO_LEDGER, ProbeState.NO_LEDGER, ProbeState.NAMED]
    assert (run.failed, run.collected, sum(run.kept.values())) == ("", [], 1)
    assert (await raw.read(1, ledger=ledger)).code == OK
    assert await raw.add(2, ledger=ledger) == OK, "nor was it fenced"
    raw.close()


async def test_nothing_is_collected_by_the_metadata_of_another_cluster(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster)
    assert await raw.add(0, ledger=LEDGER) == OK
    store = cluster.tree.session()
    _, version = await store.get(f"{ROOT}/INSTANCEID")
    await store.put(f"{ROOT}/INSTANCEID", b"another", version)
    collector = collector_of(cluster.node("a"))
    await eventually(lambda: collector.run is None or collector.run.seconds is not None)
    run = collector.begin()
    assert run is not None
    await eventually(lambda: run.seconds is not None)
    assert (run.failed, run.collected) == ("foreign", [])
    assert (await raw.read(0, ledger=LEDGER)).code == OK
    raw.close()


async def test_metadata_that_cannot_be_read_keep_their_ledger(cluster: InProcess) -> None:
    ledger = await make_ledger(cluster)
    path = (await catalog_of(cluster)).path_of(ledger)
    store = cluster.tree.session()
    _, version = await store.get(path)
    await store.put(path, b"BookieMetadataFormatVersion\t9\nwhatever", version)
    found = await cluster.service("a").key_authority.metadata.look(ledger)
    assert found.state is ProbeState.UNREADABLE
    assert dataclasses.asdict(found)["ledger_key"] == b""
