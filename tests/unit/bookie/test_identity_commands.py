"""A stopped bookie's identity by command: made, shown, changed, ended; each disagreement and what mends it."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.unit.storage.support import Batch, SteppingClock, add, read_all, sim_runtime
from tests.unit.storage.support import settings as bookie_settings
from tests.unit.storage.test_moving import copy

from bkpy.bookie.cookie import encode_cookie, storage_part
from bkpy.bookie.identity import BookieIdentity, FormatPlan
from bkpy.errors import BookKeeperError, CorruptDataError, IdentityError, StorageFailedError
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import Actor, AuditTrail
from bkpy.metadata.bookies.cookies import delete_cookie, read_cookie, write_cookie
from bkpy.metadata.cluster import Cluster, init_cluster, open_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.resolve import create_certainly
from bkpy.metadata.store.store import Create
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.runtime.process import process_runtime
from bkpy.storage.identity import COOKIE_NAME, Directories, decode_cookie
from bkpy.storage.identity import write_cookie as write_directory_cookie
from bkpy.storage.index import index
from bkpy.storage.open import open_storage
from bkpy.storage.wipe import Owner, wipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.cookies import UpdatePlan
    from bkpy.storage.engine import LedgerStorage

ROOT = "/ledgers"
DATA = dict.fromkeys(range(5), b"data")


def refuse_it(_: object) -> None:
    raise BookKeeperError("no")


def yes(_: object) -> None:
    """Agree to whatever is going to be done."""


class Site:
    """A bookie's disk, its settings, and the metadata of its cluster."""

    def __init__(self, **counts: Any) -> None:
        self.disk = SimDisk()
        self.settings = bookie_settings(**counts)
        self.tree = MemoryStore(process_runtime())
        self.store = self.tree.session()
        self.clock = SteppingClock()
        self.runs = 0
        self.cluster: Cluster

    @classmethod
    async def made(cls, **counts: Any) -> Site:
        site = cls(**counts)
        site.cluster = await init_cluster(site.store, ROOT)
        return site

    @classmethod
    async def used(cls, *, clean: bool = True, **counts: Any) -> Site:
        """With ledgers 0 to 3, some of whose entries are in the journal alone if the stop wasn't clean."""
        site = await cls.made(**counts)
        storage = await site.start()
        await add(storage, *(Batch(i, 0, 3) for i in range(4)))
        await storage.checkpoint()
        await add(storage, *(Batch(i, 3, 2) for i in range(4)))
        if clean:
            await storage.close()
        else:
            site.disk.power_cut()
        return site

    def identity(self, actor: Actor | None = None) -> BookieIdentity:
        self.runs += 1
        runtime = sim_runtime(self.disk, self.clock, self.runs)
        trail = AuditTrail(self.store, ROOT, runtime, self.settings, actor)
        return BookieIdentity(self.settings, self.store, ROOT, runtime, trail=trail)

    def set(self, **values: object) -> None:
        self.settings = self.settings.model_copy(update=values)

    async def cookie(self) -> bytes | None:
        known = await read_cookie(self.store, ROOT, self.settings.bookie_id)
        return None if known is None else storage_part(known[0])

    async def start(self) -> LedgerStorage:
        """The storage, as a bookie opens it, with what a bookie then tells the metadata store."""
        self.runs += 1
        storage = await open_storage(
            self.settings,
            sim_runtime(self.disk, self.clock, self.runs),
            instance_id=self.cluster.instance_id,
            expected_cookie=await self.cookie(),
            on_moved=self._store,
        )
        await self._store(storage.cookie)
        return storage

    async def _store(self, storage: bytes) -> None:
        known = await read_cookie(self.store, ROOT, self.settings.bookie_id)
        value = encode_cookie(self.settings.bookie_id, "127.0.0.1:3181", self.cluster.instance_id, storage)
        version = None if known is None else known[1]
        await write_cookie(self.store, ROOT, self.settings.bookie_id, value, version)

    async def check(self) -> None:
        """Two starts find everything."""
        for _ in range(2):
            storage = await self.start()
            for i in range(4):
                assert await read_all(storage, i, 0, 5) == (DATA, set())
            storage.check_invariants()
            await storage.close()

    async def refused(self, message: str) -> None:
        with pytest.raises((IdentityError, CorruptDataError), match=message):
            await self.start()

    async def update(self) -> UpdatePlan:
        return await self.identity().update(yes)

    async def update_refused(self, message: str) -> None:
        before = self.state()
        with pytest.raises(BookKeeperError, match=message):
            await self.update()
        assert self.state() == before, "something was changed"

    def state(self) -> dict[str, bytes]:
        """All files with their contents, but the locks."""
        return {
            f"{at}/{name}": self.disk.contents(f"{at}/{name}")
            for at, directory in self.disk.directories.items()
            for name in directory.view
            if name != "lock"
        }

    async def ledger_naming(self, bookie_id: str) -> int:
        def build(ledger_id: int) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id=ledger_id,
                state=LedgerState.OPEN,
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                digest="crc32c",
                ledger_key=b"k" * 32,
                fragments=(Fragment(0, (bookie_id,)),),
                owner_token=f"t{ledger_id}",
            )

        created = await self.cluster.catalog.create(build)
        return created.metadata.ledger_id  # type: ignore[union-attr]


# --- init -------------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(53)
async def test_a_bookie_that_was_made_is_run_and_is_not_made_again() -> None:
    site = await Site.made(journals=2, ledgers=2)
    assert await site.identity().init()
    assert await site.cookie() is not None
    before = site.state()
    assert not await site.identity().init()
    assert site.state() == before
    storage = await site.start()
    await add(storage, Batch(1, 0, 5))
    await storage.close()
    before = site.state()
    assert not await site.identity().init()
    assert site.state() == before


@pytest.mark.thorough
async def test_a_crash_at_every_operation_of_making_a_bookie() -> None:
    nth, crashed = 0, True
    while crashed:
        nth += 1
        site = await Site.made(journals=2, ledgers=2)
        site.disk.crash_at(nth)
        crashed = False
        try:
            await site.identity().init()
        except (SimulatedCrash, StorageFailedError):
            crashed = True
        if crashed:
            site.disk.power_cut()
        site.disk.heal()
        if crashed and nth % 2:  # by the same command, or by a start
            await site.identity().init()
        storage = await site.start()
        await add(storage, Batch(1, 0, 5))
        await storage.close()
    assert nth > 10


async def test_an_error_of_the_disk_while_a_bookie_is_made_names_the_file_and_is_got_over() -> None:
    site = await Site.made()
    site.disk.fail_at(1, errno.EIO, operation="fdatasync")
    with pytest.raises(StorageFailedError, match=r"failed to create the storage: .*Input/output error"):
        await site.identity().init()
    await site.identity().init()
    await (await site.start()).close()


@pytest.mark.scenario(53)
async def test_making_refuses_what_a_start_refuses() -> None:
    site = await Site.used()
    stored = await read_cookie(site.store, ROOT, "bookie-1")
    assert stored is not None
    await delete_cookie(site.store, ROOT, "bookie-1")
    with pytest.raises(IdentityError, match="was started here already"):
        await site.identity().init()
    for path in site.settings.journal_directories:
        for name in site.disk.listdir(path):
            if name.endswith(".txn"):
                site.disk.unlink(f"{path}/{name}")
    with pytest.raises(IdentityError, match="doesn't know this bookie id"):
        await site.identity().init()
    site.set(bookie_id="bookie-2")
    with pytest.raises(IdentityError, match="are those of bookie bookie-1"):
        await site.identity().init()


# --- format -----------------------------------------------------------------------------------------------------------


async def test_formatting_counts_asks_and_deletes_what_is_the_bookies() -> None:
    site = await Site.used(clean=False, journals=2, ledgers=2)
    file = site.disk.open("/b/journal0/notes.txt", create=True)
    file.close()
    copy(site.disk, "/b/ledgers0/index", "/b/ledgers0/index.old")  # as `rebuild-index` leaves it
    told: list[FormatPlan] = []
    plan = await site.identity().format(force=False, agree=told.append)
    assert told == [plan]
    assert plan.cookie_goes
    assert plan.bytes > 2 << 20
    assert {path: len(here.data) > 0 for path, here in plan.directories.items()} == dict.fromkeys(
        [*site.settings.journal_directories, *site.settings.ledger_directories], True
    )
    left = [path for path in site.state() if path.startswith("/b/")]
    assert left == ["/b/journal0/notes.txt"]
    assert await site.cookie() is None
    assert await site.identity().init()
    storage = await site.start()
    assert (await read_all(storage, 1, 0, 4))[0] == {}


async def test_nothing_is_deleted_without_consent() -> None:
    site = await Site.used()
    before = site.state()

    def no(_: FormatPlan) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await site.identity().format(force=False, agree=no)
    assert site.state() == before
    await site.check()


async def test_who_is_asked_may_take_time_to_agree() -> None:
    site = await Site.used()
    before = site.state()

    async def no(_: object) -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        await site.identity().format(force=False, agree=no)
    await delete_cookie(site.store, ROOT, "bookie-1")
    with pytest.raises(KeyError):
        await site.identity().update(no)
    assert await read_cookie(site.store, ROOT, "bookie-1") is None
    await site.update()
    assert site.state() == before


async def test_a_bookie_that_ledgers_name_is_formatted_by_force_alone_and_its_id_stays_taken() -> None:
    site = await Site.used()
    named = await site.ledger_naming("bookie-1")
    for _ in range(3):
        await site.ledger_naming("another")
    before = site.state()
    with pytest.raises(IdentityError, match=rf"1 ledgers of 4 name this bookie.*: {named};"):
        await site.identity().format(force=False, agree=yes)
    assert site.state() == before
    plan = await site.identity().format(force=True, agree=yes)
    assert not plan.cookie_goes
    assert not [path for path in site.state() if path.startswith("/b/")]
    # A new bookie under the id would deny what the old one acknowledged.
    await site.refused("mount its disk")
    with pytest.raises(IdentityError, match="mount its disk"):
        await site.identity().init()
    await site.cluster.catalog.delete(named)
    await site.identity().format(force=False, agree=yes)
    assert await site.identity().init()


async def test_force_leaves_the_id_taken() -> None:
    """Also if no ledger names the bookie: nobody has waited for those that may come to."""
    site = await Site.used()
    plan = await site.identity().format(force=True, agree=yes)
    assert not plan.cookie_goes
    await site.refused("has no cookie, but bookie bookie-1 has data in it")
    assert (await site.identity().format(force=False, agree=yes)).cookie_goes
    assert await site.cookie() is None


async def test_a_ledger_that_cannot_be_read_may_name_the_bookie() -> None:
    site = await Site.used()
    named = await site.ledger_naming("another")
    outcome = await create_certainly(site.store, Create(site.cluster.catalog.path_of(named + 1), b"{"), attempts_max=1)
    assert outcome
    with pytest.raises(IdentityError, match=r"0 ledgers of 2 name this bookie, .* the metadata of 1 can't be read"):
        await site.identity().format(force=False, agree=yes)


@pytest.mark.scenario(53)
@pytest.mark.parametrize("command", ["format", "update"])
async def test_nothing_is_changed_while_the_bookie_runs(command: str) -> None:
    site = await Site.made()
    storage = await site.start()
    identity = site.identity()

    async def try_it(message: str) -> None:
        with pytest.raises(IdentityError, match=message):
            await (identity.update(yes) if command == "update" else identity.format(force=True, agree=yes))

    await try_it("another process uses this directory; stop it first")
    await storage.close()
    outcome = await create_certainly(
        site.store, Create(paths.available(ROOT, "bookie-1", read_only=False), b"{}", ephemeral=True), attempts_max=1
    )
    assert outcome
    await try_it("the bookie is registered: it runs, perhaps on another machine")


@pytest.mark.scenario(53)
async def test_another_bookies_directories_are_never_emptied() -> None:
    site = await Site.used()
    site.set(bookie_id="bookie-2")
    before = site.state()
    with pytest.raises(IdentityError, match="that of bookie bookie-1, and bookie_id is bookie-2: nothing was deleted"):
        await site.identity().format(force=True, agree=yes)
    assert site.state() == before


@pytest.mark.scenario(53)
async def test_a_foreign_clusters_directories_are_emptied_by_force_to_join_this_one() -> None:
    site = await Site.used()
    other = await Site.made()
    other.disk = site.disk
    await other.refused("belongs to cluster .*bkpy bookie format --force")
    with pytest.raises(IdentityError, match="no cookie that says that they are this one's"):
        await other.identity().format(force=False, agree=yes)
    await other.identity().format(force=True, agree=yes)
    assert await other.identity().init()
    await (await other.start()).close()


@pytest.mark.scenario(53)
async def test_data_without_a_cookie_is_emptied_by_force() -> None:
    site = await Site.used()
    await delete_cookie(site.store, ROOT, "bookie-1")
    for path in ("/b/journal0", "/b/ledgers0"):
        site.disk.unlink(f"{path}/{COOKIE_NAME}")
    await site.refused("holds data .*bkpy bookie format --force")
    await site.update_refused("`bkpy bookie init`")
    await site.identity().format(force=True, agree=yes)
    assert await site.identity().init()


@pytest.mark.thorough
def test_a_crash_at_every_operation_of_formatting() -> None:
    async def crash(nth: int) -> bool:
        site = await Site.used(journals=2, ledgers=2)
        before = set(site.state())
        site.disk.crash_at(nth)
        crashed = False
        try:
            await site.identity().format(force=False, agree=yes)
        except SimulatedCrash:
            crashed = True
        site.disk.power_cut()
        site.disk.heal()
        if crashed:
            if set(site.state()) == before:
                await site.check()
            else:  # whatever is left, nothing denies what was there
                with pytest.raises(IdentityError):
                    await site.start()
            await site.identity().format(force=False, agree=yes)
        assert await site.identity().init()
        await (await site.start()).close()
        return crashed

    nth = 1
    while asyncio.run(crash(nth)):
        nth += 1
    assert nth > 15


# --- cookie -----------------------------------------------------------------------------------------------------------


async def test_cookies_are_shown_with_what_is_wrong_with_them() -> None:
    site = await Site.used(journals=2)
    site.disk.unlink("/b/journal0/cookie.json")
    site.disk.flip("/b/journal1/cookie.json", 40)
    site.set(ledger_directories=["/b/ledgers0", "/b/more"])
    before = site.state()
    instance_id, found = await site.identity().show()
    assert instance_id == site.cluster.instance_id
    assert [place.where for place in found] == [
        "the metadata store", "/b/journal0", "/b/journal1", "/b/ledgers0", "/b/more"
    ]  # fmt: skip
    assert found[0].cookie == found[3].cookie is not None
    assert [place.problem[:23] for place in found] == [
        "", "no cookie", "the cookie can't be rea", "", "there is no such direct"
    ]  # fmt: skip
    assert site.state() == before


@pytest.mark.scenario(53)
async def test_there_is_nothing_to_update_where_all_agree() -> None:
    site = await Site.used(journals=2, ledgers=2)
    before = site.state()
    assert (await site.update()).steps == []
    assert site.state() == before


def damage_cookie(site: Site) -> None:
    site.disk.flip("/b/journal0/cookie.json", 40)


def lose_cookie(path: str) -> Callable[[Site], None]:
    return lambda site: site.disk.unlink(f"{path}/cookie.json")


def disagree(site: Site) -> None:
    """A cookie that names an index which never was."""
    right = decode_cookie(site.disk.contents("/b/journal0/cookie.json"), "x")
    first, second = right.ledger_directories
    wrong = right._replace(ledger_directories=(first, second._replace(uuid="00" * 16)))
    site.disk.replace("/b/journal0/cookie.json", wrong.encode())


def move_and_add(site: Site) -> None:
    site.disk.move_directory("/b/ledgers0", "/large/l0")
    site.set(ledger_directories=["/large/l0", "/b/ledgers1", "/b/ledgers2"])
    site.disk.make_dirs("/b/ledgers2")


@pytest.mark.scenario(53)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damage_cookie, "the cookie can't be read.*`bkpy bookie cookie update`"),
        (lose_cookie("/b/journal1"), "no cookie, but bookie bookie-1 has data.*`bkpy bookie cookie update`"),
        (lose_cookie("/b/ledgers0"), "no cookie, but bookie bookie-1 has data.*`bkpy bookie cookie update`"),
        (disagree, "disagree: `bkpy bookie cookie show`.*`bkpy bookie cookie update`"),
        (move_and_add, "moved and others added.*`bkpy bookie cookie update`"),
    ],
)
async def test_a_disagreement_that_an_update_mends(spoil: Callable[[Site], None], message: str, clean: bool) -> None:
    site = await Site.used(clean=clean, journals=2, ledgers=2)
    spoil(site)
    await site.refused(message)
    with pytest.raises(KeyboardInterrupt):
        await site.identity().update(_refuse)
    await site.refused(message)
    plan = await site.update()
    assert plan.steps
    await site.check()
    assert (await site.update()).steps == []


def _refuse(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.scenario(53)
async def test_a_cookie_that_is_gone_from_the_metadata_is_written_anew() -> None:
    site = await Site.used()
    await delete_cookie(site.store, ROOT, "bookie-1")
    await site.refused("doesn't know this bookie id.*`bkpy bookie cookie update`")
    assert [step for step in (await site.update()).steps if "the metadata store" in step]
    await site.check()


@pytest.mark.scenario(53)
async def test_an_unreadable_cookie_in_the_metadata_is_written_anew() -> None:
    site = await Site.used()
    known = await read_cookie(site.store, ROOT, "bookie-1")
    assert known is not None
    value = encode_cookie("bookie-1", "127.0.0.1:3181", site.cluster.instance_id, b'{"version": 1}')
    await write_cookie(site.store, ROOT, "bookie-1", value, known[1])
    await site.refused("the cookie can't be read")
    await site.update()
    await site.check()


def empty(path: str) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        for at in (path, f"{path}/index"):
            if site.disk.exists(at):
                for name in site.disk.listdir(at):
                    if name != "index":
                        site.disk.unlink(f"{at}/{name}")

    return spoil


def swap_indexes(site: Site) -> None:
    for path in ("index/data.mdb",):
        one, other = site.disk.inode(f"/b/ledgers0/{path}"), site.disk.inode(f"/b/ledgers1/{path}")
        one.rows, other.rows = other.rows, one.rows


def move_away(site: Site) -> None:
    copy(site.disk, "/b/journal0", "/fast/j")
    site.set(journal_directories=["/fast/j", "/b/journal1"])


@pytest.mark.scenario(53)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (empty("/b/journal0"), "the journal here isn't what the index relies on.*mount the right disk"),
        (empty("/b/ledgers0"), "index is gone; restore it"),
        (swap_indexes, "the index isn't that of /b/ledgers0"),
        (lambda site: site.set(ledger_directories=["/b/ledgers1", "/b/ledgers0"]), "the index isn't that of"),
        (lambda site: site.set(ledger_directories=["/b/ledgers0"]), "has data in /b/ledgers1"),
        (lambda site: site.set(journal_directories=["/b/journal1", "/b/journal0"]), "belongs to journal 1"),
        (lambda site: site.set(bookie_id="bookie-2"), "are those of bookie bookie-1"),
        (move_away, "a copy of /b/journal0, which is still there"),
    ],
)
async def test_what_an_update_cannot_prove_it_refuses(spoil: Callable[[Site], None], message: str) -> None:
    site = await Site.used(clean=False, journals=2, ledgers=2)
    spoil(site)
    with pytest.raises(BookKeeperError):
        await site.start()
    await site.update_refused(message)


async def test_a_rewritten_cookie_and_a_formatting_are_recorded_once() -> None:
    site = await Site.used()
    site.disk.unlink(f"{site.settings.journal_directories[0]}/{COOKIE_NAME}")
    identity = site.identity(Actor("alice", "ops-1, pid 7"))
    with pytest.raises(BookKeeperError, match="no"):
        await identity.update(refuse_it)
    for _ in range(2):  # the second one finds nothing to do
        await identity.update(yes)
    await identity.format(force=True, agree=lambda plan: None)
    trail = AuditTrail(site.store, ROOT, sim_runtime(site.disk, site.clock, 0), site.settings)
    found = await trail.read(await trail.names())
    assert [(record.act, record.subject, record.done, record.actor.user) for record in found] == [
        ("cookie", site.settings.bookie_id, True, "alice"),
        ("format", site.settings.bookie_id, True, "alice"),
    ]


async def test_an_update_makes_no_directory() -> None:
    site = await Site.used(journals=2)
    site.set(journal_directories=["/b/journal0", "/nowhere"])
    await site.update_refused("no such directory: mount its disk")
    assert not site.disk.exists("/nowhere")


async def test_an_update_refuses_directories_of_another_cluster() -> None:
    site = await Site.used()
    other = await Site.made()
    other.disk = site.disk
    await other.update_refused("belongs to cluster")


# --- the number of journals -------------------------------------------------------------------------------------------


def with_journals(site: Site, count: int) -> BookieSettings:
    return site.settings.model_copy(update={"journal_directories": [f"/b/journal{i}" for i in range(count)]})


@pytest.mark.scenario(53)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 3), (3, 1), (3, 2)])
async def test_the_number_of_journals_changes_after_a_clean_stop(before: int, after: int) -> None:
    site = await Site.used(journals=before, ledgers=2)
    site.settings = with_journals(site, after)
    await site.refused("after a clean stop `bkpy bookie cookie update` changes their number")
    for i in range(before, after):
        site.disk.make_dirs(f"/b/journal{i}")
    plan = await site.update()
    assert plan.given_up == tuple(f"/b/journal{i}" for i in range(after, before))
    assert (await site.update()).steps == []
    await site.check()
    assert [path for path in site.state() if path.startswith("/b/journal") and int(path[10]) >= after] == []
    # and back
    site.settings = with_journals(site, before)
    await site.update()
    await site.check()


@pytest.mark.scenario(53)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
async def test_the_number_of_journals_stays_after_an_unclean_stop(before: int, after: int) -> None:
    site = await Site.used(clean=False, journals=before)
    old, site.settings = site.settings, with_journals(site, after)
    site.disk.make_dirs("/b/journal1")
    await site.update_refused("only after a clean stop, and this journal has something to replay")
    site.settings = old
    await site.check()
    site.settings = with_journals(site, after)
    await site.update()
    await site.check()


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_crash_at_every_operation_of_changing_the_number_of_journals(before: int, after: int) -> None:
    async def crash(nth: int) -> bool:
        site = await Site.used(journals=before, ledgers=2)
        site.disk.make_dirs("/b/journal1")
        old, site.settings = site.settings, with_journals(site, after)
        site.disk.crash_at(nth)
        crashed = False
        try:
            await site.update()
        except SimulatedCrash:
            crashed = True
        site.disk.power_cut()
        site.disk.heal()
        if crashed:
            for settings in (old, with_journals(site, after)):
                if await _starts(site, settings):
                    await site.check()
            site.settings = with_journals(site, after)
            await site.update()
        await site.check()
        return crashed

    nth = 1
    while asyncio.run(crash(nth)):
        nth += stride()
    assert nth > 6


async def _starts(site: Site, settings: BookieSettings) -> bool:
    """Whether the bookie starts with these; if not, it says how to go on."""
    site.settings = settings
    try:
        storage = await site.start()
    except IdentityError as e:
        message = str(e)
    else:
        await storage.close()
        return True
    assert "bkpy bookie cookie" in message
    return False


async def test_an_interrupted_change_of_the_number_of_journals_is_told_by_a_start() -> None:
    site = await Site.used()
    stores = sim_runtime(site.disk).store
    store = stores.open("/b/ledgers0/index")
    row = index.load_shard(store)
    assert row is not None
    index.put_shard(store, row._replace(marks=row.marks * 2))
    store.close()
    await site.refused("marks of 2 journals, and there are 1.*run `bkpy bookie cookie update` once more")
    await site.update()
    await site.check()


async def test_a_cluster_is_needed() -> None:
    site = Site()
    with pytest.raises(BookKeeperError, match="bkpy cluster init"):
        await site.identity().init()
    site.cluster = await init_cluster(site.store, ROOT)
    assert (await open_cluster(site.store, ROOT)).instance_id == site.cluster.instance_id
    assert await site.identity().init()


async def test_an_index_without_a_cookie_is_emptied_by_force() -> None:
    site = await Site.used()
    await delete_cookie(site.store, ROOT, "bookie-1")
    for path in site.state():
        if path.startswith("/b/") and "index" not in path:
            site.disk.unlink(path)
    await site.refused("index holds ledgers, but it has no cookie.*format --force")
    await site.identity().format(force=True, agree=yes)
    await (await site.start()).close()


async def test_a_journal_that_is_given_up_must_be_there_to_be_looked_at() -> None:
    site = await Site.used(journals=2)
    site.settings = with_journals(site, 1)
    site.disk.move_directory("/b/journal1", "/away")
    await site.update_refused("is to be given up, and isn't there: mount it")
    site.disk.move_directory("/away", "/b/journal1")
    await site.update()
    await site.check()


# --- journal directories that are given up ----------------------------------------------------------------------------


async def given_up_to_another() -> tuple[Site, Site, bytes]:
    """A bookie that gave a journal directory up, another one that has its journal there now, and the former's cookie
    from before."""
    site = await Site.used(journals=2)
    before = await site.cookie()
    assert before is not None
    path = site.settings.journal_directories[1]
    site.set(journal_directories=site.settings.journal_directories[:1])
    await site.update()
    other = await Site.made()
    other.disk, other.tree, other.store, other.cluster = site.disk, site.tree, site.store, site.cluster
    other.set(bookie_id="other", journal_directories=[path], ledger_directories=["/other/ledgers0"])
    other.clock.now += 5
    storage = await other.start()
    await add(storage, *(Batch(i, 0, 5) for i in range(4)))
    await storage.close()
    return site, other, before


async def test_a_journal_directory_that_is_another_bookies_by_now_is_left_alone() -> None:
    """The metadata were put back to before it was given up."""
    site, other, before = await given_up_to_another()
    known = await read_cookie(site.store, ROOT, "bookie-1")
    assert known is not None
    value = encode_cookie("bookie-1", "127.0.0.1:3181", site.cluster.instance_id, before)
    await write_cookie(site.store, ROOT, "bookie-1", value, known[1])
    await site.refused("journal_directories")
    await site.update()
    await other.check()
    await site.check()


async def test_a_journal_directory_that_changes_hands_before_it_is_emptied_is_left_alone() -> None:
    """While somebody is asked whether it may be."""
    site = await Site.used(journals=2)
    path = site.settings.journal_directories[1]
    site.set(journal_directories=site.settings.journal_directories[:1])
    cookie = decode_cookie(await site.cookie() or b"", "the metadata store")

    def change_hands(plan: UpdatePlan) -> None:
        assert plan.given_up == (path,)
        write_directory_cookie(site.disk, path, cookie._replace(bookie_id="other"))

    with pytest.raises(IdentityError, match="is that of bookie other"):
        await site.identity().update(change_hands)
    assert any(name.endswith(".txn") for name in site.disk.listdir(path))
    write_directory_cookie(site.disk, path, cookie)
    await site.update()
    assert site.disk.listdir(path) == ["lock"]
    await site.check()


async def test_a_journal_directory_without_a_cookie_is_not_emptied() -> None:
    site = await Site.used(journals=2)
    path = site.settings.journal_directories[1]
    site.disk.unlink(f"{path}/{COOKIE_NAME}")
    both = site.settings.journal_directories
    site.set(journal_directories=both[:1])
    await site.update_refused("its cookie doesn't say that it is this bookie's")
    site.set(journal_directories=both)
    await site.update()
    site.set(journal_directories=both[:1])
    await site.update()
    await site.check()


async def test_nothing_is_removed_from_directories_of_another_bookie() -> None:
    site = await Site.used()
    owner = Owner("other", site.cluster.instance_id)
    path = site.settings.ledger_directories[0]
    before = site.state()
    with pytest.raises(IdentityError, match="is that of bookie bookie-1"):
        wipe(site.disk, [path], owner, allowed=[path])
    site.disk.unlink(f"{path}/{COOKIE_NAME}")
    with pytest.raises(IdentityError, match="no cookie that says"):
        wipe(site.disk, [path], owner)
    site.disk.unlink(f"{site.settings.journal_directories[0]}/{COOKIE_NAME}")
    assert {name for name in before if COOKIE_NAME not in name} == set(site.state())


async def test_a_rebuild_does_not_take_the_directory_of_another_bookie() -> None:
    """One that has stored nothing yet, so that it has neither a journal nor an entry log."""
    other = await Site.made()
    other.set(bookie_id="other")
    await other.identity().init()
    site = await Site.made()
    site.disk, site.tree, site.store, site.cluster = other.disk, other.tree, other.store, other.cluster
    site.set(journal_directories=["/mine/journal0"], ledger_directories=["/mine/ledgers0"])
    await site.identity().init()
    cookie = decode_cookie(await site.cookie() or b"", "the metadata store")
    for at in ("/mine/journal0", "/mine/ledgers0"):
        wipe(site.disk, [at], Owner("bookie-1", site.cluster.instance_id))
    site.set(ledger_directories=other.settings.ledger_directories)
    expected = cookie._replace(
        ledger_directories=(cookie.ledger_directories[0]._replace(path=other.settings.ledger_directories[0]),)
    )
    directories = Directories(site.settings, site.disk, site.cluster.instance_id)
    with pytest.raises(IdentityError, match="are those of bookie other"):
        directories.restart(expected.encode())
