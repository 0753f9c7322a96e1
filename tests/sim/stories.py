"""What is known of ledgers from outside: what their users were told, and every value their metadata ever had.

Invariants of the protocol that show themselves while a run goes on are checked when they do: entries are acknowledged
in the order of their ids, each when an ack quorum of the bookies that the metadata name for it has it; the states of a
ledger go one way, and a closed one is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, NoSuchEntryError
from bkpy.metadata.store.store import Operation, Put
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from tests.faults.oracle import Promises, check, check_replicas
from tests.hooks import cluster_of

from .cluster import NATIVE, Bookie, Tree, check_bookie
from .coverage_marks import CHANGED_IN_RECOVERY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from bkpy.client.client import Client
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.writer import LedgerWriter

    from .world import World

PASSWORD = b"secret"
ORDER = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)


@dataclass
class Story:
    """One ledger's. `broken` is what is wrong already."""

    ledger_id: int
    stored: LedgerMetadata
    bookies: Sequence[Bookie] = ()
    promises: Promises = field(init=False)
    payloads: dict[int, bytes] = field(default_factory=dict)  # of what was acknowledged
    unforced: dict[int, bytes] = field(default_factory=dict)  # the same where syncs are deferred, until it is forced
    wanted: dict[int, bytes] = field(default_factory=dict)  # by ids of the caller's choice, until they are known taken
    ends: list[int] = field(default_factory=list)  # as those were told who closed the ledger, or recovered it
    failure: BookKeeperError | None = None  # of its writer
    closings: int = 0
    changes: int = 0  # of its ensemble
    misplaced: bool = False  # an entry was; the first one says it all

    def __post_init__(self) -> None:
        self.promises = Promises(self.ledger_id)

    @property
    def broken(self) -> list[str]:
        return self.promises.violations

    def violated(self, invariant: str, what: str) -> None:
        """An invariant of the protocol doesn't hold: it fails the run in the end."""
        self.broken.append(f"{invariant}: {what}")

    @property
    def closed(self) -> bool:
        return self.stored.state is LedgerState.CLOSED

    def written(self, value: LedgerMetadata) -> None:
        """The metadata store has accepted a new value."""
        before, self.stored = self.stored, value
        if ORDER.index(value.state) < ORDER.index(before.state):
            self.violated("I3", f"the ledger was {before.state} and is {value.state}")
        if before.state is LedgerState.CLOSED:
            self.violated("I3", "the metadata of a closed ledger were changed")
        self.closings += value.state is LedgerState.CLOSED
        self.changes += value.fragments != before.fragments

    def acknowledged(self, writer: LedgerWriter, entry_id: int, payload: bytes) -> None:
        self.payloads[entry_id] = payload
        # While the ledger is open, the writer alone says where its entries are.
        if self.stored.state is LedgerState.OPEN and not self.misplaced:
            holders = self._holders(entry_id)
            if len(holders) < self.stored.ack_quorum:
                self.misplaced = True
                named = ", ".join(self.stored.fragment_of(entry_id).bookies)
                self.violated("I7", f"entry {entry_id} was acknowledged when of {named} only {sorted(holders)} had it")
        self.promises.acked(entry_id, payload, writer.last_add_confirmed)

    def missing(self, entry_id: int) -> set[str]:
        """The bookies that should have the entry, by its ledger's metadata, and have not."""
        return self.named_for(entry_id) - self._holders(entry_id)

    def named_for(self, entry_id: int) -> set[str]:
        """The bookies that should have the entry, by its ledger's metadata."""
        value = self.stored
        names = value.fragment_of(entry_id).bookies
        return {names[i] for i in write_set(entry_id, value.ensemble_size, value.write_quorum)}

    def _holders(self, entry_id: int) -> set[str]:
        """The bookies that should have the entry, by its ledger's metadata, and have acknowledged it."""
        wanted = self.named_for(entry_id)
        have = {b.host.name for b in self.bookies if entry_id in b.promises[self.ledger_id]}
        return wanted & have


class Stories:
    """All ledgers of one world."""

    def __init__(self, world: World, bookies: Sequence[Bookie], tree: Tree = NATIVE) -> None:
        self.world = world
        self.bookies = bookies
        self.tree = tree
        self.by_id: dict[int, Story] = {}
        self._by_path: dict[str, Story] = {}
        self.moved: asyncio.Future[None] = world.loop.create_future()  # done at the next write of metadata
        self._watch()

    def _watch(self) -> None:
        """Let each story know of every value that the metadata store accepts."""
        apply = self.world.metadata.apply

        def watched(operation: Operation, session_id: int, sequential: bool = False) -> str | int | None:
            result = apply(operation, session_id, sequential)
            if isinstance(operation, Put) and (story := self._by_path.get(operation.path)) is not None:
                self.changed(story, LedgerMetadata.decode(story.ledger_id, operation.data))
            return result

        self.world.metadata.apply = watched  # type: ignore[method-assign]

    def changed(self, story: Story, value: LedgerMetadata) -> None:
        """The metadata store has accepted a new value for the ledger."""
        before = story.stored
        story.written(value)
        if before.state is LedgerState.IN_RECOVERY and before.fragments != value.fragments:
            self.world.marks[CHANGED_IN_RECOVERY] += 1
        self.note(story)
        moved, self.moved = self.moved, self.world.loop.create_future()
        moved.set_result(None)

    def begin(self, client: Client, writer: LedgerWriter) -> Story:
        story = Story(writer.ledger_id, writer.metadata, self.bookies)
        self.by_id[writer.ledger_id] = story
        self._by_path[cluster_of(client).catalog.path_of(writer.ledger_id)] = story
        self.note(story)
        return story

    def note(self, story: Story) -> None:
        value = story.stored
        fragments = "; ".join(f"{f.first_entry}: {', '.join(f.bookies)}" for f in value.fragments)
        sizes = f"{value.ensemble_size}, {value.write_quorum}, {value.ack_quorum}"
        name = self.tree.name_of(story.ledger_id)
        self.world.record("store", str(value.state), f"{name} ({sizes}) {value.last_entry} [{fragments}]")

    # --- what is told while the run goes on -------------------------------------------------------------------------

    async def look(self, client: Client, story: Story) -> None:
        """Read the last entries that may be read of a ledger, as far as they can be read now: others must see them."""
        try:
            reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
            last = reader.last_add_confirmed
            async for entry in reader.read(max(0, last - 20), last):
                story.promises.returned(entry.entry_id, entry.data)
        except NoSuchEntryError as error:
            story.violated("I2", f"an entry that may be read was denied: {error}")
        except BookKeeperError as error:
            self.world.record("reader", "failed", f"{story.ledger_id} {type(error).__name__}")

    # --- the account ------------------------------------------------------------------------------------------------

    async def check(self, client: Client, bookies: list[Bookie]) -> None:
        """Demand everything of all ledgers, which have to be closed by now; all bookies have to be up."""
        for story in self.by_id.values():
            await check(client, story.promises, PASSWORD)
            await check_replicas(client, story.ledger_id, PASSWORD)
            end = story.stored.last_entry
            assert set(story.ends) <= {end}, f"ledger {story.ledger_id} ends at {end}, told were {story.ends}"
            assert story.closings == 1, f"ledger {story.ledger_id} was closed {story.closings} times"
            reader: LedgerReader = await client.open_ledger(story.ledger_id, password=PASSWORD)
            for bookie in bookies:
                await check_bookie(reader, story.payloads, bookie)
            self.world.record("oracle", "satisfied", f"{story.ledger_id} {end} {len(story.payloads)} acknowledged")
