"""The end of a run whose metadata are lost, and restored from a backup that was made in mid-run.

Bookies join the restored cluster in any order, and die now and then, one of them for ever; an operator restores,
confirms, and tries again what failed, and now and then another one confirms as well, or a first restored cluster is
lost in the same way. What was ever acknowledged in a ledger of the backup is read with equal bytes, and is on every
bookie that the restored metadata name; nobody is told before that it isn't there; bookies keep what was written to
ledgers that the backup doesn't have, until an operator lets it go.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.admin.client import AdminClient
from bkpy.admin.restore_confirmation import RestoreConfirmation
from bkpy.client.client import replication_context
from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookKeeperError, NoSuchEntryError, NoSuchLedgerError
from bkpy.metadata import paths
from bkpy.metadata.backup.backup import back_up
from bkpy.metadata.backup.restore import restore_backup
from bkpy.metadata.bookies.cookies import list_cookies
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.repair.holdings import holdings
from tests.hooks import cluster_of
from tests.sim.cluster import Tree, held_by
from tests.sim.coverage_marks import (
    COLLECTED_LATER,
    CONFIRMED_BY_TWO,
    CONFIRMED_IN_VAIN,
    GIVEN_UP_IN_RESTORE,
    KEPT_FOR_LATER,
    READ_BEFORE_CONFIRMED,
    RESTORED,
    RESTORED_BEYOND_BACKUP,
    RESTORED_IN_VAIN,
)
from tests.sim.stories import PASSWORD
from tests.sim.world import HostDied

from .oracle import LedgerStory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bkpy.client.client import Client
    from bkpy.metadata.backup.restore import Restored
    from bkpy.metadata.store.store import MetadataStore
    from tests.sim.cluster import Bookie

    from .stage import Stage

FIRST, ROOT = "/first", "/restored"
DELETES_AGAIN = 30  # times, before nothing else is left to be deleted
COLLECTS_WITHIN_S = 10.0  # several rounds of every bookie's collection
_WHEN = "after the metadata were restored, "


class Backup(NamedTuple):
    """A backup in a file of the operator's host, and what there certainly was all the time that it took."""

    path: str
    ledgers: frozenset[int]


async def make_backup(stage: Stage, path: str) -> Backup | None:
    """By the operator; None if that fails now."""
    backup: Backup | None = None

    async def act(client: Client) -> None:
        nonlocal backup
        before = frozenset(metadata.ledger_id for metadata in stage.oracle.ledgers())
        files = stage.operating.runtime.files
        files.make_dirs(path.rpartition("/")[0])
        await back_up(cluster_of(client), files, path)
        backup = Backup(path, before.intersection(metadata.ledger_id for metadata in stage.oracle.ledgers()))

    with contextlib.suppress(BookKeeperError):
        await stage.on(stage.operating.name, act)
    return backup


class RestoredCluster:
    """All that was to happen has, or all dies in the middle of it."""

    def __init__(self, stage: Stage, backup: Backup) -> None:
        self.stage = stage
        self.backup = backup
        self.former = stage.cluster.tree
        self.root = ROOT
        self.rng = stage.schedule.stream("restored")
        self.as_backed_up: dict[int, LedgerMetadata] = {}
        self.accepted_loss = False  # by the confirmation
        self.lost = False  # a bookie for ever, since
        self.written: set[int] = set()  # ledgers of restored clusters

    @property
    def tree(self) -> Tree:
        return Tree(self.root, self.former.layout, self.former.codec)

    async def play(self) -> None:
        stage = self.stage
        await self._all_die()
        given_up = await self._restore_in_vain()
        held = {bookie: {i for i, ids in bookie.promises.items() if ids} for bookie in self._bookies()}
        restored = await stage.within("metadata restored", self._restore(given_up))
        self.as_backed_up = {metadata.ledger_id: metadata for metadata in self._ledgers()}
        if left := {i for i in self.backup.ledgers if not self._is_deleted(i)} - self.as_backed_up.keys():
            self._violated("I2", f"the backup lacks ledgers {sorted(left)}, which were there all the time")
        stage.world.marks[RESTORED] += 1
        stage.cluster.tree = self.tree
        supervising = [asyncio.create_task(self._join()), asyncio.create_task(self._deaths())]
        losing = asyncio.create_task(self._lose_one())
        for host in (*stage.clients, stage.operating):
            if not host.up:
                stage.boot(host)
        probing = asyncio.create_task(stage.on(stage.clients[0].name, self._probe))
        rival = asyncio.create_task(stage.on(stage.clients[-1].name, self._confirm_as_well))
        await stage.within("restore confirmed", self._on_operator(self._confirm))
        losing.cancel()
        _end(probing)
        _end(rival)
        await self._on_operator(self._check, copies=True)
        await stage.within("bookies take entries", self._on_operator(self._write_anew))
        await stage.within("logs open", self._on_operator(self._append_to_logs))
        for host in stage.workers:
            stage.boot(host)
        await asyncio.sleep(COLLECTS_WITHIN_S)
        await self._on_operator(self._check, copies=False)
        later = range(restored.restore.kept_from, restored.restore.kept_to + 1)
        for bookie, ledgers in held.items():
            newer = {i for i in ledgers if i in later and i not in self.as_backed_up}
            stage.world.marks[KEPT_FOR_LATER] += bool(newer)
            if bookie.host.up and (lost := newer.difference(await bookie.held())):
                self._violated(
                    "I2", f"{bookie.host.name} has collected {sorted(lost)}, which may have been created since"
                )
        await self._collect_later(held, later)
        for one in supervising:
            _end(one)

    async def _restore_in_vain(self) -> tuple[str, ...]:
        """Now and then a first restored cluster is lost as well, as bookies join it, or once it is confirmed."""
        stage, rng = self.stage, self.stage.schedule.stream("restored in vain")
        if rng.random() < 0.6:
            return ()
        self.root = FIRST
        first = (await stage.within("metadata restored", self._restore())).restore
        stage.cluster.tree = self.tree
        joining = asyncio.create_task(self._join())
        for host in (*stage.clients, stage.operating):
            stage.boot(host)
        confirming = asyncio.create_task(stage.on(stage.operating.name, self._confirm_in_vain))
        await asyncio.sleep(rng.choice((2.0, 10.0, 40.0)) * rng.random())
        for one in (joining, confirming):
            _end(one)
            await asyncio.wait([one])
        for bookie in stage.cluster.bookies:
            async with stage.busy[bookie.host.name]:
                pass
        data = stage.oracle.data(f"{FIRST}/{paths.RESTORE}")
        stage.world.marks[RESTORED_IN_VAIN] += 1
        stage.world.marks[CONFIRMED_IN_VAIN] += data is not None and b'"confirmed"' in data
        await self._all_die()
        self.root = ROOT
        return (first.instance_id,)

    async def _confirm_in_vain(self, client: Client) -> None:
        """As whoever doesn't know that it will be lost; accepts no losses, and writes something."""
        while True:
            try:
                await self._confirmation(client).run(without=await self._given_up(cluster_of(client).store))
            except BookKeeperError as error:
                self.stage.world.record("operator", "did not confirm the first restore", str(error))
                await self._delete_again(client)
                await asyncio.sleep(0.5)
            else:
                break
        await self._write_anew(client)

    async def _collect_later(self, held: dict[Bookie, set[int]], later: range) -> None:
        """An operator lets go what was created after the backup; then no bookie keeps any of it."""
        if self.stage.schedule.stream("later ledgers").random() < 0.5:
            return

        async def collected(client: Client) -> None:
            await self._confirmation(client).run(collect_later=True)
            for bookie, ledgers in held.items():
                newer = {i for i in ledgers if i in later and i not in self.as_backed_up}
                while newer and not self.stage.is_gone(bookie) and await self._may_hold(bookie, newer):
                    await asyncio.sleep(0.2)
                self.stage.world.marks[COLLECTED_LATER] += bool(newer)

        await self.stage.within("ledgers that are younger than the backup are collected", self._on_operator(collected))

    async def _may_hold(self, bookie: Bookie, ledgers: set[int]) -> bool:
        if bookie.host.up and not self.stage.busy[bookie.host.name].locked():
            with contextlib.suppress(HostDied):
                return not ledgers.isdisjoint(await bookie.held())
        return True

    def _bookies(self) -> list[Bookie]:
        """Those that the former cluster had. One that was about to join it, or had just been formatted, is new."""
        oracle, cookies = self.stage.oracle, f"{self.root}/{paths.COOKIES}"
        return [
            bookie
            for bookie in self.stage.cluster.bookies
            if not self.stage.is_gone(bookie)
            and (_has_begun(bookie) or oracle.data(f"{cookies}/{bookie.settings.bookie_id}") is not None)
        ]

    async def _all_die(self) -> None:
        stage = self.stage
        for host in (*stage.clients, *stage.workers, stage.operating):
            if host.up:
                stage.dies(host, power=self.rng.random() < 0.5)
        for bookie in stage.cluster.bookies:
            how = self.rng.choice(("stop", "crash", "power cut"))
            if bookie.host.up and how == "stop" and bookie.node is not None and not stage.is_gone(bookie):
                with contextlib.suppress(HostDied):
                    await bookie.stop()
            elif bookie.host.up and how == "power cut":
                bookie.host.power_cut()
            elif bookie.host.up:
                bookie.host.crash()

    # --- the store ----------------------------------------------------------------------------------------------------

    async def _restore(self, also_from: tuple[str, ...] = ()) -> Restored:
        """The operator's process dies now and then, and loses replies; what it has begun goes on."""
        host, settings = self.stage.operating, MetadataSettings(restore_nodes_max=self.rng.choice((1, 3, 50)))
        unlucky = self.rng.choice((0, 1, 3))
        late = bool(also_from) and self.rng.random() < 0.5
        while True:
            host.boot()
            if unlucky:
                host.faults.chances = {"metadata.request_lost": 0.1, "metadata.reply_lost": 0.1}
            restoring = host.start(
                restore_backup(
                    host.session(),
                    self.root,
                    host.runtime.files,
                    self.backup.path,
                    also_from=() if late else also_from,
                    settings=settings,
                )
            )
            await asyncio.wait([restoring], timeout=self.rng.random() ** 3 if unlucky else None)
            host.faults.chances = {}
            unlucky = max(0, unlucky - 1)
            done = restoring.done()
            host.crash()
            if done:
                with contextlib.suppress(BookKeeperError):  # a reply was lost; whatever else is a defect
                    restored = restoring.result()
                    if not late:
                        return restored
                    late = False  # once more, as bookies are refused

    def _ledgers(self) -> Iterable[LedgerMetadata]:
        """Of the restored cluster, as they are stored."""
        metadata = self.stage.world.metadata
        for path in metadata.paths:
            if path.startswith(f"{self.root}/"):
                ledger_id = self.tree.layout.id_of(path.removeprefix(f"{self.root}/"))
                if ledger_id is not None:
                    yield self.tree.codec.decode(ledger_id, metadata.node(path).data)

    def _is_deleted(self, ledger_id: int) -> bool:
        """Whether it was, in the former cluster."""
        return self.stage.oracle.data(self.former.path_of(ledger_id)) is None

    # --- bookies ------------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """All of them, in any order."""
        stage = self.stage
        bookies = self._bookies()
        self.rng.shuffle(bookies)
        for bookie in bookies:
            uri = bookie.settings.metadata_uri.removesuffix(bookie.tree.root) + self.root
            bookie.settings = bookie.settings.model_copy(update={"metadata_uri": uri})
            bookie.tree = self.tree
            bookie.mends = True
            bookie.rebuilds |= not _has_begun(bookie)
        late_s = self.rng.choice((0.0, 0.0, 8.0))
        for bookie in bookies:
            await asyncio.sleep(self.rng.random() ** 3 * 3 + (late_s if bookie is bookies[-1] else 0.0))
            async with stage.busy[bookie.host.name]:
                if not bookie.host.up:
                    await stage.start(bookie)  # unless it is lost
        await stage.keep_up()

    async def _lose_one(self) -> None:
        """One that never comes back, where the others have all that an ack quorum of two has acknowledged."""
        oracle, bookies, rng = self.stage.oracle, self._bookies(), self.stage.schedule.stream("lost for ever")
        short = oracle.gone | oracle.rotten | oracle.in_doubt | oracle.formatted
        for by_bookie in (oracle.rot, oracle.forgotten):
            short |= {name for name, by_ledger in by_bookie.items() if any(by_ledger.values())}
        sizes = [metadata.ensemble_size for metadata in self.as_backed_up.values()]
        largest = max([*sizes, 3 if self.stage.logs or not sizes else 0])  # logs go on with new ledgers
        keep = all(bookie.settings.journal_write_data for bookie in bookies)
        if short or not keep or len(bookies) <= largest or rng.random() < 0.5:
            return
        lost = rng.choice(bookies)
        await asyncio.sleep(rng.choice((0.0, 5.0, 20.0)) * rng.random())
        async with self.stage.busy[lost.host.name]:
            self.stage.world.record("event", "a bookie is lost for ever", lost.host.name)
            oracle.gone.add(lost.settings.bookie_id)
            self.lost = True
            if lost.host.up:
                lost.host.crash()

    async def _deaths(self) -> None:
        for _ in range(self.rng.choice((0, 1, 3))):
            await asyncio.sleep(self.rng.random() ** 2 * 4)
            bookie = self.rng.choice(self._bookies())
            if bookie.host.up and self.rng.random() < 0.5:
                bookie.host.crash()
            elif bookie.host.up:
                bookie.host.power_cut()

    # --- the operator -------------------------------------------------------------------------------------------------

    async def _on_operator(self, act: Any, **options: Any) -> None:
        assert await self.stage.on(self.stage.operating.name, functools.partial(act, **options))

    async def _confirm(self, client: Client) -> None:
        """Until it is done. What was deleted since is deleted again; losses are accepted where there may be some."""
        stage, oracle = self.stage, self.stage.oracle
        await asyncio.sleep(self.rng.choice((0.0, 2.0, 6.0)))  # for whoever does too early what has to wait
        cluster = cluster_of(client)
        confirmation = self._confirmation(client)
        for tries in itertools.count():
            without = await self._given_up(cluster.store)
            accept_loss = bool(oracle.gone and oracle.may_lose) or (
                tries > DELETES_AGAIN and self._may_lack_something()
            )
            try:
                await confirmation.run(without=without, accept_loss=accept_loss)
            except BookKeeperError as error:
                stage.world.record("operator", "did not confirm the restore", str(error))
                await self._delete_again(client)
                await asyncio.sleep(0.5)
            else:
                self.accepted_loss = accept_loss or bool(oracle.gone and oracle.may_lose)
                stage.world.marks[GIVEN_UP_IN_RESTORE] += self.lost
                return

    def _confirmation(self, client: Client) -> RestoreConfirmation:
        return RestoreConfirmation(replication_context(client), self.stage.settings, None)

    async def _given_up(self, store: MetadataStore) -> list[str]:
        """The bookies that never come back, as far as the restored cluster knows them."""
        known = await list_cookies(store, self.root)
        return [name for name in sorted(self.stage.oracle.gone) if name in known]

    async def _confirm_as_well(self, client: Client) -> None:
        """Another operator, who knows nothing of the first one, accepts no losses, and may miss that one is lost."""
        rng = self.stage.schedule.stream("another operator")
        if rng.random() < 0.6:
            return
        store, confirmation = cluster_of(client).store, self._confirmation(client)
        while True:
            await asyncio.sleep(rng.random() ** 2 * 4)
            try:
                await confirmation.run(without=await self._given_up(store) if rng.random() < 0.7 else ())
            except BookKeeperError as error:
                self.stage.world.record("operator", "another one did not confirm the restore", str(error))
            else:
                self.stage.world.marks[CONFIRMED_BY_TWO] += 1
                return

    def _may_lack_something(self) -> bool:
        """The last ledger of a truncated log is not deleted again, and damaged entries may be the last copies."""
        logs = {"log writer", "doomed log"}
        return bool(self.stage.oracle.rotten) or any(actor.kind in logs for actor in self.stage.schedule.actors)

    async def _delete_again(self, client: Client) -> None:
        """What was deleted, or truncated, since the backup."""
        metadata, logs = self.stage.world.metadata, f"{self.root}/{paths.LOGS}/"
        names = {path.removeprefix(logs).partition("/")[0] for path in metadata.paths if path.startswith(logs)}
        for name in sorted(names):
            former = self.stage.oracle.data(f"{self.former.root}/{paths.LOGS}/{name}")
            with self._noting(name):
                if former is None:
                    await client.delete_log(name)
                    continue
                first = LogList.decode(name, former).first_position
                async with await client.read_log(name, password=PASSWORD) as reader:
                    first = min(first, reader.next_position)
                    if first > reader.first_position:
                        await AdminClient(client).truncate_log(name, first, password=PASSWORD, ignore_consumers=True)
        for one in [*self._ledgers()]:
            if self._is_deleted(one.ledger_id):
                with self._noting(str(one.ledger_id)):
                    await client.delete_ledger(one.ledger_id)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except BookKeeperError as error:
            self.stage.world.record("operator", "did not delete again", f"{name} {error}")

    async def _write_anew(self, client: Client) -> None:
        """As soon as bookies take entries again."""
        while True:
            try:
                writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
                await writer.append(b"new")
                await writer.close()
            except BookKeeperError:
                await asyncio.sleep(0.2)
            else:
                break
        if writer.ledger_id in self.written:
            self._violated("I2", f"the id {writer.ledger_id} was given out in the first restored cluster, too")
        self.written.add(writer.ledger_id)
        if writer.ledger_id in self.as_backed_up or writer.ledger_id in self.stage.oracle.created:
            self._violated("I2", f"the id {writer.ledger_id} was given out twice")

    async def _append_to_logs(self, client: Client) -> None:
        """No position is given out twice."""
        if self.accepted_loss:
            return  # the ledgers at the end of a log may be among those that have to be given up one by one
        for name, users in self.stage.logs.items():
            if self.stage.oracle.data(f"{self.root}/{paths.LOGS}/{name}") is None:
                continue  # it is younger than the backup
            while True:
                try:
                    async with await client.open_log(name, password=PASSWORD) as log:
                        position = await log.append(b"after")
                except BookKeeperError as error:
                    self.stage.world.record("operator", "did not append to a log", f"{name} {error}")
                    await asyncio.sleep(0.2)
                else:
                    break
            given = {at for tale in users.account.tales for at in tale.acknowledged.values()}
            if position <= max(given, default=-1):
                self._violated("logs dense", f"position {position} of {name} was given out before")

    # --- what is read -------------------------------------------------------------------------------------------------

    async def _probe(self, client: Client) -> None:
        """Before the confirmation a ledger may be unreadable, and never ends too early or lacks an entry."""
        rng = self.stage.schedule.stream("restored probe")
        while True:
            await asyncio.sleep(rng.random())
            if rng.random() < 0.2:
                await self._try_to_write(client)
            stories = self._stories()
            if not stories:
                return
            story = rng.choice(stories)
            last = max(story.payloads, default=-1)
            try:
                reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
                if reader.closed and reader.last_add_confirmed < last:
                    self._violated("I1", f"ledger {story.ledger_id} ends at {reader.last_add_confirmed}, before {last}")
                entry_id = min(rng.choice([*story.payloads, 0]), reader.last_add_confirmed)
                async for entry in reader.read(entry_id, entry_id):
                    self.stage.world.marks[READ_BEFORE_CONFIRMED] += 1
                    if story.payloads.get(entry_id, entry.data) != entry.data:
                        self._violated("I2", f"entry {entry_id} of ledger {story.ledger_id} has other bytes")
                await reader.close()
            except (NoSuchEntryError, NoSuchLedgerError) as error:
                if story.payloads and not self._is_deleted(story.ledger_id):
                    self._violated("I9", f"ledger {story.ledger_id}: {error}")
            except BookKeeperError:
                pass

    async def _try_to_write(self, client: Client) -> None:
        """Nothing is taken before the confirmation."""
        try:
            writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
            await writer.append(b"too early")
        except BookKeeperError:
            return
        data = self.stage.oracle.data(f"{self.root}/{paths.RESTORE}")
        if data is not None and b'"confirmed"' not in data:
            self._violated("I1", f"ledger {writer.ledger_id} was written before the restore was confirmed")

    def _stories(self) -> list[LedgerStory]:
        """Of ledgers that are in the backup, were not deleted, and can't have lost anything."""
        oracle, found = self.stage.oracle, []
        for story in self.stage.stories.by_id.values():
            assert isinstance(story, LedgerStory)
            may_lack = (
                story.stored.accepted_loss is not None
                or (oracle.gone and story.ledger_id in oracle.may_lose)
                or any(entries.get(story.ledger_id) for entries in oracle.rot.values())
            )
            if story.ledger_id in self.as_backed_up and not self._is_deleted(story.ledger_id) and not may_lack:
                found.append(story)
        return found

    async def _check(self, client: Client, *, copies: bool) -> None:
        """Everything is there; with `copies`, on every bookie that is named."""
        for story in self._stories():
            metadata = await client.ledger_metadata(story.ledger_id)
            before = self.as_backed_up[story.ledger_id]
            name, last = f"ledger {story.ledger_id}", max(story.payloads, default=-1)
            if metadata.state is not LedgerState.CLOSED:
                self._violated("I3", f"{name} is {metadata.state}")
                continue
            if before.state is LedgerState.CLOSED and metadata.last_entry != before.last_entry:
                self._violated("I3", f"{name} ended at {before.last_entry}, and ends at {metadata.last_entry}")
            if metadata.last_entry < last:
                self._violated("I1", f"{name} ends at {metadata.last_entry}, and {last} was acknowledged")
            if before.state is not LedgerState.CLOSED and metadata.last_entry > max(before.last_entry, 0):
                self.stage.world.marks[RESTORED_BEYOND_BACKUP] += 1
            await self._check_contents(client, story, metadata)
            if copies:
                await self._check_copies(client, story, metadata)

    async def _check_contents(self, client: Client, story: LedgerStory, metadata: LedgerMetadata) -> None:
        reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
        try:
            found = [entry async for entry in reader.read(0, metadata.last_entry)] if metadata.last_entry >= 0 else []
        except BookKeeperError as error:
            self._violated("I2", f"ledger {story.ledger_id} can't be read: {error}")
            return
        if [entry.entry_id for entry in found] != list(range(metadata.last_entry + 1)):
            self._violated("I2", f"ledger {story.ledger_id} has not every entry once, in order")
        for entry in found:
            if story.payloads.get(entry.entry_id, entry.data) != entry.data:
                self._violated("I2", f"entry {entry.entry_id} of ledger {story.ledger_id} has other bytes")
        await reader.close()

    async def _check_copies(self, client: Client, story: LedgerStory, metadata: LedgerMetadata) -> None:
        by_name = {bookie.settings.bookie_id: bookie for bookie in self._bookies()}
        reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
        for held in holdings(metadata):
            assert held.last_entry is not None
            for share in held.shares:
                bookie = by_name.get(share.bookie_id)
                wanted = {n for start in share.starts for n in range(start, held.last_entry + 1, share.step)}
                wanted -= self.stage.oracle.rot[share.bookie_id][story.ledger_id]
                if bookie is None or not wanted:
                    continue
                while True:
                    try:
                        has = await held_by(reader, story.payloads, bookie, held.last_entry, in_limbo=True)
                        break
                    except BookKeeperError:
                        await asyncio.sleep(0.2)  # it has just died, and comes back
                assert has is not None
                if lacks := wanted - has:
                    self._violated("I7", f"{share.bookie_id} lacks {sorted(lacks)} of ledger {story.ledger_id}")
        await reader.close()

    def _violated(self, invariant: str, what: str) -> None:
        self.stage.oracle.violate(invariant, f"{_WHEN}{what}")


def _end(task: asyncio.Task[Any]) -> None:
    """Raise what ended it too early."""
    if task.done():
        task.result()
    task.cancel()


def _has_begun(bookie: Bookie) -> bool:
    """Whether its directories belong to a cluster."""
    return bookie.host.disk.exists(f"{bookie.settings.journal_directories[0]}/cookie.json")
