"""What must hold while everything happens, and in the end: the first violation ends the run, and names its invariant.

* I1 no acknowledged entry lies above the end of its ledger; I2 every acknowledged entry is read with equal bytes;
  I3 a closed ledger keeps its end, and states go one way; I4 acknowledgements come in the order of the ids, and a
  ledger holds its appends once each, in call order; I5 no reader sees an entry past the end; I6 fragments ascend, and
  the bookies of an ensemble are distinct; I7 an acknowledged entry is on an ack quorum of the bookies that the
  metadata name; I8 a bookie takes no append to a ledger that it fenced; I9 a bookie denies nothing that it
  acknowledged; I10 re-replication forgets nobody, gives up nothing that a bookie has, and recovers no ledger without
  need.
* "logs dense", "consumers exact": `log_account.py`.
* "liveness: ...": what has to come to its end once the faults have.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, NoSuchEntryError
from bkpy.metadata import paths
from bkpy.metadata.replication.underreplication import LossReason
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.protocol.repair.holdings import holdings
from tests.faults.oracle import Promises, findings, read_back
from tests.hooks import cluster_of, has_storage, in_limbo, is_serving, mender_of, storage_of
from tests.sim.cluster import HIDDEN_MAX, NATIVE, ROOT, Ledger, Tree, held_by
from tests.sim.coverage_marks import MEMORY_LOST
from tests.sim.healing_oracle import SEEN_WITHIN_S, HealingOracle
from tests.sim.stories import ORDER, PASSWORD, Stories, Story

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from tests.sim.cluster import Bookie, Cluster

_LEDGER = re.compile(rf"{ROOT}/(\d{{3}})/(\d{{4}})/(\d{{4}})/(\d{{4}})/L(\d{{4}})")


class Violation(AssertionError):  # noqa: N818 - it is what the oracle finds
    """A promise was broken. `invariant`: "I1" to "I10", "logs dense", "consumers exact", or "liveness: ...".

    `tree`: of the cluster whose ledgers `what` is about.
    """

    def __init__(self, invariant: str, what: str, tree: Tree = NATIVE) -> None:
        super().__init__(f"{invariant}: {what}" + (" (in BookKeeper's cluster)" if tree.of_bookkeeper else ""))
        self.invariant = invariant
        self.tree = tree


def _write_sets(metadata: LedgerMetadata) -> Iterable[set[str]]:
    """The bookies of each write set of the first fragment."""
    names, size = metadata.fragments[0].bookies, metadata.ensemble_size
    return ({names[i] for i in write_set(n, size, metadata.write_quorum)} for n in range(size))


def _holes(metadata: LedgerMetadata) -> set[int]:
    """The entries that are recorded as lost."""
    loss = metadata.accepted_loss
    return {n for first, last in (() if loss is None else loss.holes) for n in range(first, last + 1)}


class LedgerStory(Story):
    """What is known of one ledger; what is wrong is reported at once."""

    def __init__(self, writer: LedgerWriter, stored: LedgerMetadata, oracle: Oracle) -> None:
        self.oracle = oracle
        self.writer: LedgerWriter | None = writer  # None when its process is gone
        self.host = ""  # of the writer
        self.deleted = False  # or about to be
        super().__init__(writer.ledger_id, stored, oracle.bookies)
        self.promises = WatchedPromises(self)

    def violated(self, invariant: str, what: str) -> None:
        if not self.deleted or invariant == "I8":
            self.oracle.violate(invariant, f"ledger {self.ledger_id}: {what}")

    def written(self, value: LedgerMetadata) -> None:
        before, self.stored = self.stored, value
        if ORDER.index(value.state) < ORDER.index(before.state):
            self.violated("I3", f"it was {before.state} and is {value.state}")
        self.closings += value.state is LedgerState.CLOSED and before.state is not LedgerState.CLOSED
        self.changes += value.fragments != before.fragments

    def acknowledged(self, writer: LedgerWriter, entry_id: int, payload: bytes) -> None:
        self.payloads[entry_id] = payload
        stored = self.stored
        if stored.state is LedgerState.CLOSED and entry_id > stored.last_entry:
            self.violated("I1", f"entry {entry_id} was acknowledged, and the ledger ends at {stored.last_entry}")
        # While the ledger is open, the writer alone says where its entries are.
        if stored.state is LedgerState.OPEN and len(holders := self._holders(entry_id)) < stored.ack_quorum:
            named = ", ".join(stored.fragment_of(entry_id).bookies)
            self.violated("I7", f"entry {entry_id} was acknowledged when of {named} only {sorted(holders)} had it")
        self.promises.acked(entry_id, payload, writer.last_add_confirmed)

    def _holders(self, entry_id: int) -> set[str]:
        forgotten = self.oracle.forgotten
        wanted = self.named_for(entry_id)
        return super()._holders(entry_id) | {n for n in wanted if entry_id in forgotten[n][self.ledger_id]}

    @property
    def most(self) -> int | None:
        """The last entry that a reader may see now; None if nobody can tell."""
        if self.stored.state is LedgerState.CLOSED:
            return self.stored.last_entry
        if self.stored.state is LedgerState.OPEN and self.writer is not None:
            return self.writer.last_add_confirmed
        return None


class WatchedPromises(Promises):
    """Promises that report at once what breaks them."""

    def __init__(self, story: LedgerStory) -> None:
        super().__init__(story.ledger_id)
        self._story = story

    def returned(self, entry_id: int, data: bytes) -> None:
        most = self._story.most
        if most is not None and entry_id > most:
            self._story.violated("I5", f"a reader was given entry {entry_id}, and the last one was {most}")
        before = self.seen.get(entry_id)
        super().returned(entry_id, data)
        if before not in (None, self.seen[entry_id]):
            self._story.violated("I2", f"entry {entry_id} was read with different bytes")

    def _broken(self, what: str) -> None:
        self._story.violated("I4", what)


class LedgerStories(Stories):
    """All ledgers that clients write. The oracle watches the metadata for them."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        super().__init__(oracle.cluster.world, oracle.cluster.bookies, oracle.cluster.tree)

    def _watch(self) -> None:
        pass

    def begin(self, client: Client, writer: LedgerWriter) -> LedgerStory:
        ledger_id = writer.ledger_id
        cluster = self.oracle.cluster
        value = cluster.world.metadata.node(cluster_of(client).catalog.path_of(ledger_id)).data
        story = LedgerStory(writer, cluster.tree.codec.decode(ledger_id, value), self.oracle)
        self.by_id[ledger_id] = story
        cluster.ledgers[ledger_id] = Ledger(PASSWORD, tolerates_one=False, acknowledged=story.payloads)
        self.note(story)
        return story


class Oracle(HealingOracle):
    """Of one run. `found` is done with the first violation."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, 0.0)
        self.cluster = cluster
        self.world = cluster.world
        self.bookies = cluster.bookies
        self.found: asyncio.Future[Violation] = self.world.loop.create_future()
        # By bookie and ledger, what a bookie had acknowledged when it lost its disks.
        self.forgotten: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.rotten: set[str] = set()  # bookies with flipped bytes
        # By bookie and ledger, the entries in blocks with flipped bytes: they may be unreadable there.
        self.rot: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.in_doubt: set[str] = set()  # bookies that may not know what they have of older ledgers
        self.retired: set[str] = set()  # decommissioned bookies
        self.formatted: set[str] = set()  # bookies that are new under an id that there was
        self.checks_replicas = True
        self.absent: defaultdict[int, set[str]] = defaultdict(set)  # by ledger, bookies that were when it was created
        self.left_behind: dict[int, LedgerMetadata] = {}  # as ledgers were when a recovery of them began
        self._closing: tuple[LedgerMetadata, ...] = ()  # the metadata of a ledger before and after the present write
        self.created: set[int] = set()  # ledgers that there ever were
        self.stories = LedgerStories(self)

    def violate(self, invariant: str, what: str) -> None:
        violation = Violation(invariant, what, self.tree)
        self.world.record("oracle", "violation", str(violation))
        if not self.found.done():
            self.found.set_result(violation)

    def _broken(self, invariant: str, what: str) -> None:
        self.violate(invariant, what)

    def story(self, ledger_id: int) -> LedgerStory:
        story = self.stories.by_id[ledger_id]
        assert isinstance(story, LedgerStory)
        return story

    def given_up(self, metadata: LedgerMetadata, last_entry: int | None = None) -> set[int]:
        """Entries that of the bookies named for them the lost host alone had; by default up to the end."""
        if metadata.ledger_id not in self.may_lose:
            return set()
        promises = {bookie.settings.bookie_id: bookie.promises[metadata.ledger_id] for bookie in self.bookies}
        lost = set()
        for entry_id in range((metadata.last_entry if last_entry is None else last_entry) + 1):
            names = metadata.fragment_of(entry_id).bookies
            named = {names[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)}
            if named & self.gone and not any(entry_id in promises[name] for name in named - self.gone):
                lost.add(entry_id)
        return lost

    def _not_copied(self, metadata: LedgerMetadata) -> set[int]:
        """What is given up, and where nobody could accept that, all else in the same fragment: it is not swapped."""
        lost = self.given_up(metadata)
        if lost and metadata.accepted_loss is None:
            ends = [following.first_entry for following in metadata.fragments[1:]] + [metadata.last_entry + 1]
            for fragment, end in zip(metadata.fragments, ends, strict=True):
                if not lost.isdisjoint(entries := range(fragment.first_entry, end)):
                    lost.update(entries)
        return lost

    def _unsent(self, ledger_id: int, bookie_id: str, entry_ids: set[int]) -> set[int]:
        """Entries that a bookie need not have where replicas are not checked: a writer died before it had sent them.

        No record tells of them, and a recovery writes nothing back that is known to be acknowledged. Of a bookie that
        was absent when the ledger was created a record does tell, of all up to the fragment that took it in.
        """
        left = self.left_behind.get(ledger_id)
        if self.checks_replicas or left is None:
            return set()
        recorded = range(0)
        if bookie_id in self.absent[ledger_id]:
            recorded = range(
                left.fragments[1].first_entry if len(left.fragments) > 1 else max(entry_ids, default=-1) + 1
            )
        found = set()
        for entry_id in entry_ids.difference(recorded, self._promised(bookie_id, ledger_id)):
            names = left.fragment_of(entry_id).bookies
            if bookie_id in {names[i] for i in write_set(entry_id, left.ensemble_size, left.write_quorum)}:
                found.add(entry_id)
        return found

    def _promised(self, bookie_id: str, ledger_id: int) -> set[int]:
        (bookie,) = (one for one in self.bookies if one.settings.bookie_id == bookie_id)
        return bookie.promises[ledger_id]

    def stuck(self) -> set[int]:
        """Ledgers whose records stay: entries of them are lost, and nobody could accept that, for they were closed."""
        return {one.ledger_id for one in self.ledgers() if one.accepted_loss is None and self.given_up(one)}

    def not_registered(self) -> str:
        """The bookies that live and are not registered yet."""
        names = {bookie.settings.bookie_id for bookie in self.bookies} - self.gone
        return ", ".join(sorted(name for name in names if not self._is_registered(name)))

    def _is_away(self, name: str) -> bool:
        """Whether everybody knows that it isn't registered: one that comes back is seen a little late, or too long."""
        return not self._is_registered(name) and self.unchanged(name, SEEN_WITHIN_S)

    def _is_registered(self, name: str) -> bool:
        return any(self.data(paths.available(self.root, name, read_only=one)) is not None for one in (False, True))

    def last_kept(self, ledger_id: int) -> int:
        """The same, by the bookies that are named for an entry before the ledger is closed, or then."""
        most = max(self.story(ledger_id).payloads, default=-1)
        if ledger_id not in self.may_lose:
            return most
        lost = set.intersection(*(self.given_up(one, most) for one in self._closing))
        return min(lost, default=most + 1) - 1

    def _misses_nothing(self, metadata: LedgerMetadata, bookie_id: str) -> bool:
        if super()._misses_nothing(metadata, bookie_id):
            return True
        lost = self.given_up(metadata)
        shares = [(held, share) for held in holdings(metadata) for share in held.shares if share.bookie_id == bookie_id]
        return bool(lost) and all(
            lost.issuperset(n for start in share.starts for n in range(start, held.last_entry + 1, share.step))
            for held, share in shares
            if held.last_entry is not None
        )

    def is_stored(self, ledger_id: int) -> bool:
        """Whether the metadata store has the ledger."""
        return self.data(self.tree.path_of(ledger_id)) is not None

    def loses_disks(self, bookie: Bookie) -> None:
        """All that the bookie has acknowledged is gone; others have it."""
        forgotten = self.forgotten[bookie.settings.bookie_id]
        for ledger_id, ids in bookie.promises.items():
            forgotten[ledger_id] |= ids
        bookie.promises.clear()

    def loses_memory(self, bookie: Bookie) -> None:
        """Any of what the bookie has acknowledged may be gone. It says so, and denies nothing."""
        self.loses_disks(bookie)
        self.in_doubt.add(bookie.settings.bookie_id)
        self.world.marks[MEMORY_LOST] += 1

    def had(self, bookie: Bookie, ledger_id: int, wanted: set[int]) -> set[int]:
        """Nobody can tell a copy that goes with its bookie's disks before the swap from one that goes behind it."""
        forgotten = self.forgotten[bookie.settings.bookie_id][ledger_id]
        return forgotten if wanted <= forgotten else super().had(bookie, ledger_id, wanted)

    # --- every write of the metadata ----------------------------------------------------------------------------------

    def _ledger_of(self, path: str) -> int | None:
        match = _LEDGER.fullmatch(path)
        return int("".join(match.groups())) if match else None

    def _created(self, ledger_id: int) -> None:
        self.created.add(ledger_id)
        data = self.data(self.tree.path_of(ledger_id))
        assert data is not None
        metadata = self.tree.codec.decode(ledger_id, data)
        if metadata.ack_quorum == 1:
            self.may_lose.add(ledger_id)
        without = {n for n, reason in (self.mark_of(ledger_id) or {}).items() if reason == LossReason.ABSENT}
        for members in _write_sets(metadata):
            if len(members - without) <= metadata.write_quorum - metadata.ack_quorum:
                why = f"ledger {ledger_id} was created without {sorted(without)}, and can't be recovered without them"
                self.violate("I10", why)
        self.absent[ledger_id] = without | {name for name in metadata.fragments[0].bookies if self._is_away(name)}

    def _removed(self, ledger_id: int) -> None:
        story = self.stories.by_id.get(ledger_id)
        if story is not None and not story.deleted:
            self.violate("I2", f"ledger {ledger_id} was deleted by nobody who may")

    def _ledger(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        starts = [fragment.first_entry for fragment in new.fragments]
        if starts != sorted(set(starts)):
            self.violate("I6", f"the fragments of ledger {new.ledger_id} begin at {starts}")
        for fragment in new.fragments:
            if len(set(fragment.bookies)) != len(fragment.bookies):
                self.violate("I6", f"a fragment of ledger {new.ledger_id} names {', '.join(fragment.bookies)}")
        if (holes := _holes(new) - _holes(old)) and (had := holes - self.given_up(new)):
            self.violate("I10", f"entries {sorted(had)} of ledger {new.ledger_id} became a hole, and bookies have them")
        if new.state is LedgerState.IN_RECOVERY:
            self.left_behind.setdefault(new.ledger_id, old)
        story = self.stories.by_id.get(new.ledger_id)
        if story is not None:
            self.stories.changed(story, new)
            self._closing = old, new
            if not story.deleted:
                super()._ledger(old, new)
        elif old.state is LedgerState.CLOSED and (old.last_entry, old.length) != (new.last_entry, new.length):
            self.violate("I3", f"ledger {old.ledger_id} was closed at {old.last_entry}, and then at {new.last_entry}")

    # --- liveness -----------------------------------------------------------------------------------------------------

    def ledgers(self) -> Iterable[LedgerMetadata]:
        """Of all ledgers there are, logs' too, the metadata as they are stored."""
        for path in self.world.metadata.paths:
            if (ledger_id := self._ledger_of(path)) is not None:
                yield self.tree.codec.decode(ledger_id, self.world.metadata.node(path).data)

    def unfinished(self, *, heals: bool) -> tuple[str, str] | None:
        """What has to come to its end and hasn't: the name of the liveness, and why. `heals`: workers are there."""
        for metadata in self.ledgers():
            if metadata.state is not LedgerState.CLOSED:
                return "liveness: ledgers closed", f"ledger {metadata.ledger_id} is {metadata.state}"
        for bookie in self.bookies:
            if bookie.settings.bookie_id in self.gone:
                continue
            if not bookie.host.up or bookie.node is None or not is_serving(bookie.node):
                return "liveness: bookies up", f"{bookie.host.name} is down, or starts"
            if bookie.mends and (doubt := self._doubt(bookie)):
                return "liveness: limbo empty", doubt
        if heals:
            stuck = {self.tree.layout.path_of(self.marks.rstrip("/"), ledger_id) for ledger_id in self.stuck()}
            for path in self.world.metadata.paths:
                if path.startswith(self.marks) and path.rpartition("/")[2].startswith("L") and path not in stuck:
                    return "liveness: ledgers re-replicated", f"the mark {path} is left"
        return None

    def _doubt(self, bookie: Bookie) -> str:
        assert bookie.node is not None
        status = mender_of(bookie.node).status()
        doubts = {name: status[name] for name in ("in_doubt", "left", "waiting") if status[name]}
        return f"{bookie.host.name}: {doubts}" if doubts else ""

    async def in_limbo(self) -> str:
        """Ledgers that name a bookie where they are in limbo: its next look ends that, whoever named it."""
        named = {one.ledger_id: one.needed_bookies for one in self.ledgers()}
        for bookie in self.bookies:
            name = bookie.settings.bookie_id
            if bookie.mends and name not in self.gone and bookie.node is not None:
                there = [ledger_id for ledger_id in await in_limbo(bookie.node) if name in named.get(ledger_id, ())]
                if there:
                    return f"{name}: {sorted(there)}"
        return ""

    async def short(self, client: Client) -> str:
        """Which bookie misses entries of its share of a ledger."""
        for metadata in [*self.ledgers()]:
            if why := await self._short(client, metadata):
                return why
        return ""

    async def _short(self, client: Client, metadata: LedgerMetadata) -> str:
        """Only bookies that have not acknowledged all of their share are asked: more may be there after a restart."""
        by_name = {bookie.settings.bookie_id: bookie for bookie in self.bookies}
        lost = self._not_copied(metadata)
        for number, held in enumerate(holdings(metadata)):
            assert held.last_entry is not None
            if metadata.is_hole(number):
                continue  # nobody has it, and it keeps its bookies
            for share in held.shares:
                wanted = {n for start in share.starts for n in range(start, held.last_entry + 1, share.step)}
                wanted -= lost
                if not wanted and share.entries:
                    continue  # all of it is given up
                wanted -= self._unsent(metadata.ledger_id, share.bookie_id, wanted)
                if share.bookie_id in self.gone:
                    return f"ledger {metadata.ledger_id} names {share.bookie_id}, which is gone"
                wanted -= self.rot[share.bookie_id][metadata.ledger_id]
                bookie = by_name[share.bookie_id]
                if not wanted <= bookie.promises[metadata.ledger_id]:
                    has = await self._has(client, metadata.ledger_id, bookie, held.last_entry)
                    if missing := wanted - has:
                        return f"{share.bookie_id} misses {sorted(missing)} of ledger {metadata.ledger_id}"
        return ""

    async def _has(self, client: Client, ledger_id: int, bookie: Bookie, last: int) -> set[int]:
        try:
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            has = await held_by(reader, {}, bookie, last, in_limbo=True)
            await reader.close()
        except BookKeeperError:
            return set()
        assert has is not None
        return has

    async def left_over(self) -> str:
        """Ledgers that were deleted and that a bookie still has something of."""
        deleted = self.created - {metadata.ledger_id for metadata in self.ledgers()}
        for bookie in self.bookies:
            if not bookie.host.up or bookie.settings.bookie_id in self.gone:
                continue
            if bookie.node is None or not has_storage(bookie.node):
                return f"{bookie.host.name} has not opened its storage"
            if left := deleted.intersection(await bookie.held()):
                return f"{bookie.host.name} has {sorted(left)}, which were deleted"
        return ""

    def memory_left(self) -> str:
        """Memory that a bookie still counts for requests, though there are none."""
        for bookie in self.bookies:
            if bookie.settings.bookie_id not in self.gone and bookie.host.up and bookie.node is not None:
                used = storage_of(bookie.node).memory.by_name()
                if left := {name: used[name] for name in ("answers", "journal queues") if used[name]}:
                    return f"{bookie.host.name} counts {left}"
        return ""

    # --- the account --------------------------------------------------------------------------------------------------

    async def check(self, client: Client, *, heals: bool) -> None:
        """Read everything with a new client, and from each bookie what that one has promised."""
        for bookie in self.bookies:
            if bookie.taken_late:
                self.violate("I8", f"{bookie.host.name} took appends to {bookie.taken_late}, which it had fenced")
            await self._check_fences(bookie)
        for story in self.stories.by_id.values():
            assert isinstance(story, LedgerStory)
            if not story.deleted:
                await self._check_ledger(client, story, heals=heals)

    async def _check_fences(self, bookie: Bookie) -> None:
        """What had lost nothing takes no append to any ledger that it said is fenced."""
        name = bookie.settings.bookie_id
        if bookie.rebuilds or name in self.gone | self.in_doubt | self.rotten | self.formatted:
            return
        if forgotten := await bookie.forgotten_fences():
            self.violate("I8", f"{bookie.host.name} would take appends to {forgotten}, which it had fenced")

    async def check_denials(self, client: Client, bookie: Bookie) -> None:
        """A bookie that has lost entries denies none that a ledger names it for."""
        name = bookie.settings.bookie_id
        for ledger_id, lost in [*self.forgotten[name].items()]:
            story = self.stories.by_id.get(ledger_id)
            if story is None or self.story(ledger_id).deleted or not lost:
                continue
            named = self._named(story.stored, name, lost)
            unknown: set[int] = set()
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            held = await held_by(reader, story.payloads, bookie, max(lost), in_limbo=True, unknown=unknown)
            await reader.close()
            assert held is not None
            if denied := sorted(named & self._named(story.stored, name, lost) - held - unknown):
                self.violate("I9", f"{name} acknowledged {denied} of ledger {ledger_id}, and denies that it had them")

    def _named(self, metadata: LedgerMetadata, name: str, entry_ids: set[int]) -> set[int]:
        """Those of the entries that should be on the bookie."""
        ends_at = metadata.last_entry if metadata.state is LedgerState.CLOSED else max(entry_ids)
        named = set()
        for entry_id in entry_ids:
            names = metadata.fragment_of(entry_id).bookies
            places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            if entry_id <= ends_at and name in [names[i] for i in places]:
                named.add(entry_id)
        return named

    async def _check_ledger(self, client: Client, story: LedgerStory, *, heals: bool) -> None:
        if story.stored.accepted_loss is not None or self.given_up(story.stored):
            await self._check_what_is_left(client, story)
        else:
            await self.check_contents(client, story)
        metadata = story.stored
        if wrong := set(story.ends) - {metadata.last_entry}:
            self.violate("I3", f"ledger {story.ledger_id} ends at {metadata.last_entry}, clients saw {sorted(wrong)}")
        if story.closings != 1:
            self.violate("I3", f"ledger {story.ledger_id} was closed {story.closings} times")
        held = await self._check_bookies(client, story, heals=heals)
        self._check_copies(metadata, held, heals=heals)
        self.world.record("oracle", "satisfied", f"{self.tree.name_of(story.ledger_id)} {metadata.last_entry}")

    async def _check_what_is_left(self, client: Client, story: LedgerStory) -> None:
        """Of a ledger that has lost entries with a host, each of the others is read as it was appended.

        That it wasn't closed before one of them was seen when that was stored.
        """
        lost = self.given_up(story.stored)
        tried = {min(lost), max(lost)} if lost else set()  # the others cost as much time
        reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
        for entry_id in range(story.stored.last_entry + 1):
            if entry_id in lost - tried:
                continue
            try:
                (data,) = [entry.data async for entry in reader.read(entry_id, entry_id)]
            except BookKeeperError as error:
                if entry_id not in lost or isinstance(error, NoSuchEntryError):
                    self.violate("I2", f"entry {entry_id} of ledger {story.ledger_id} can't be read: {error}")
            else:
                if data != story.payloads.get(entry_id, data):
                    self.violate("I2", f"entry {entry_id} of ledger {story.ledger_id} has other bytes")
                story.promises.returned(entry_id, data)
        await reader.close()

    async def check_contents(self, client: Client, story: LedgerStory, when: str = "") -> None:
        try:
            contents = await read_back(client, story.ledger_id, PASSWORD)
        except BookKeeperError as error:
            self.violate("I2", f"{when}ledger {story.ledger_id} can't be read: {error}")
            return
        for invariant, what in findings(story.promises, contents):
            self.violate(invariant, f"{when}ledger {story.ledger_id}: {what}")

    async def _check_bookies(self, client: Client, story: LedgerStory, *, heals: bool) -> dict[str, set[int]]:
        """Each bookie has what it acknowledged, and where nobody heals denies nothing that it has lost.

        Returns what each has.
        """
        ledger_id = story.ledger_id
        reader = await client.open_ledger(ledger_id, password=PASSWORD)
        found: dict[str, set[int]] = {}
        for bookie in self.bookies:
            name = bookie.settings.bookie_id
            if name in self.gone:
                continue
            held = None
            unknown: set[int] = set()
            for _ in range(HIDDEN_MAX):
                unknown.clear()
                promised = set(bookie.promises[ledger_id])  # it may promise more meanwhile
                last = max(promised | {story.stored.last_entry})
                try:
                    # What had empty disks once denies no older ledger, also where none names it.
                    may_not_know = bookie.rebuilds or name in self.in_doubt or bool(self.rot[name][ledger_id])
                    held = await held_by(reader, story.payloads, bookie, last, in_limbo=may_not_know, unknown=unknown)
                except BookKeeperError:
                    await asyncio.sleep(0.1)  # a connection of the storm, or too much at once
                    continue
                if held is not None and not unknown & promised - self.rot[name][ledger_id]:
                    break
                if bookie.true_sight(ledger_id) is not ProbeState.OVER_REPLICATED:
                    if held is not None:
                        break
                    self.violate("I9", f"{name} can't tell what it has of ledger {ledger_id}")
                    return found
                await asyncio.sleep(0.1)  # it is hidden while the bookie makes sure that nobody needs it
            if held is None:
                self.violate("liveness: copies shown", f"{name} does not say what it has of ledger {ledger_id}")
                return found
            unreadable = unknown & self.rot[name][ledger_id]
            if lost := sorted(promised & bookie.promises[ledger_id] - held - unreadable):
                self.violate("I9", f"{name} acknowledged and lost {lost} of ledger {ledger_id}")
            lost_ids = {n for n in self.forgotten[name][ledger_id] if n <= last}
            if not heals and (denied := sorted(lost_ids - held - unknown)):
                self.violate("I9", f"{name} acknowledged {denied} of ledger {ledger_id}, and denies that it had them")
            found[name] = held
        await reader.close()
        return found

    def _check_copies(self, metadata: LedgerMetadata, held: Mapping[str, set[int]], *, heals: bool) -> None:
        """Every entry is on an ack quorum of its bookies, and on all of them where workers are."""
        needed = metadata.write_quorum if heals else metadata.ack_quorum
        lost = self._not_copied(metadata)
        for entry_id in range(metadata.last_entry + 1):
            if entry_id in lost:
                continue
            names = metadata.fragment_of(entry_id).bookies
            places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            there = [
                names[i]
                for i in places
                if entry_id in held.get(names[i], ())
                or entry_id in self.rot[names[i]][metadata.ledger_id]
                or (heals and self._unsent(metadata.ledger_id, names[i], {entry_id}))
                or (not heals and entry_id in self.forgotten[names[i]][metadata.ledger_id])
            ]
            if len(there) < needed:
                self.violate("I7", f"entry {entry_id} of ledger {metadata.ledger_id} is on {there or 'none'} only")
                return
