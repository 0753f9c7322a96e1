"""What must hold at every write of the metadata while bookies are lost, leave, and copies are moved.

It watches the tree of the metadata store, and knows what each bookie has acknowledged:

* a closed ledger keeps its end, and no ledger is closed before an entry that was acknowledged. One whose bookies are
  gone may be, and then behind all that a bookie has which is left;
* who takes another one's place in a fragment has all of its share at that moment;
* no bookie that is gone, or is to leave, is taken off the mark of a closed ledger that names it;
* no open ledger is recovered for the sake of a mark before the mark is as old as the grace period; nor for bookies that
  have come back with what they had; nor where no bookie could take the place of those that are gone.

What is broken fails the run when it has ended, whatever the code makes of it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bkpy.metadata import paths
from bkpy.metadata.replication.underreplication import LossReason
from bkpy.metadata.store.store import Check, NoNode
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings
from bkpy.replication.worker.ledger_repair import LedgerRepair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bkpy.metadata.store.store import Operation
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

    from .cluster import Bookie, Cluster

SEEN_WITHIN_S = 3.0  # of a change of the bookies: who was cut off meanwhile is on its way

# Reasons that a bookie's drain replaces when it records the ledger: while a record has one, the drain has yet to come.
_BEFORE_A_DRAIN = (LossReason.ABSENT, LossReason.RETURNED)


class HealingOracle:
    """Of one run. `gone`: the bookies that never come back. `may_lose`: ledgers of which those had too many copies."""

    def __init__(self, cluster: Cluster, grace_s: float) -> None:
        self.gone: set[str] = set()
        self.may_lose: set[int] = set()
        self.swaps = 0
        self.tree = cluster.tree
        self.root = cluster.tree.root
        self.marks = f"{self.root}/{paths.MARKS}/"
        self.available = f"{self.root}/{paths.AVAILABLE}/"
        self._cluster = cluster
        self._world = cluster.world
        self.grace_s = grace_s
        self._ledgers: dict[str, int] = {}  # by path
        self._marked_at: dict[int, float] = {}
        self._inside = False
        self._changed_at: dict[str, float] = {}  # when each bookie's registration changed
        self._in_limbo_at: dict[str, float] = {}  # when a registration of each was replaced that says "in limbo"

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Every write, and every recovery that a worker begins."""
        tree = self._world.metadata
        apply, apply_all, end_session = tree.apply, tree.apply_all, tree.end_session
        recover = LedgerRepair.recover

        def one(operation: Operation, *args: Any) -> Any:
            return self._judged([operation], lambda: apply(operation, *args))

        def all_of(operations: Sequence[Operation], *args: Any) -> Any:
            return self._judged(operations, lambda: apply_all(operations, *args))

        def ended(session_id: int) -> None:
            before = {path: tree.node(path).data for path in tree.paths if path.startswith(self.available)}
            end_session(session_id)
            for path, old in before.items():
                if self.data(path) is None:
                    self._registration(path, old)

        async def watched_recover(repair: LedgerRepair, ledger_id: int) -> None:
            self._recovers(ledger_id)
            await recover(repair, ledger_id)

        with (
            patch.object(tree, "apply", one),
            patch.object(tree, "apply_all", all_of),
            patch.object(tree, "end_session", ended),
            patch.object(LedgerRepair, "recover", watched_recover),
        ):
            yield

    def _judged(self, operations: Sequence[Operation], write: Callable[[], Any]) -> Any:
        """What `write` returns. A transaction counts when all of it is done."""
        if self._inside:
            return write()
        written = [operation.path for operation in operations if not isinstance(operation, Check)]
        before = [self.data(path) for path in written]
        self._inside = True
        try:
            result = write()
        finally:
            self._inside = False
        for path, old in zip(written, before, strict=True):
            new = self.data(path)
            if path.startswith(self.available):
                self._registration(path, old)
            if path.startswith(self.marks):
                self._mark(path, old, new)
            elif (ledger_id := self._ledger_of(path)) is not None:
                if new is None:
                    self._removed(ledger_id)
                elif old is None:
                    self._created(ledger_id)
                else:
                    self._ledger(self.tree.codec.decode(ledger_id, old), self.tree.codec.decode(ledger_id, new))
        return result

    def _registration(self, path: str, old: bytes | None) -> None:
        """The one at `path` is no longer what it was."""
        name = path.rpartition("/")[2]
        self._changed_at[name] = self._world.loop.now
        if self.says_limbo(old):
            self._in_limbo_at[name] = self._world.loop.now

    def says_limbo(self, registration: bytes | None) -> bool:
        return bool(registration) and bool(json.loads(registration).get("in_limbo"))

    def unchanged(self, name: str, seconds: float) -> bool:
        """Whether the bookie's registration has been as it is for so long."""
        return self._world.loop.now - self._changed_at.get(name, -seconds) >= seconds

    def data(self, path: str) -> bytes | None:
        try:
            return self._world.metadata.node(path).data
        except NoNode:
            return None

    def _ledger_of(self, path: str) -> int | None:
        if path not in self._ledgers:
            self._ledgers = {self.tree.path_of(ledger_id): ledger_id for ledger_id in self._cluster.ledgers}
        return self._ledgers.get(path)

    def _broken(self, invariant: str, what: str) -> None:
        what = f"{invariant}: {what}"
        self._world.loop.errors.append({"message": what, "exception": AssertionError(what)})

    # --- ledgers ----------------------------------------------------------------------------------------------------

    def _created(self, ledger_id: int) -> None:
        """The run says what it writes."""

    def _removed(self, ledger_id: int) -> None:
        """The run says what it deletes."""

    def _ledger(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.state is LedgerState.CLOSED:
            if (old.last_entry, old.length, new.state) != (new.last_entry, new.length, LedgerState.CLOSED):
                self._broken(
                    "I3", f"ledger {old.ledger_id} was closed at {old.last_entry}, and then at {new.last_entry}"
                )
        elif new.state is LedgerState.CLOSED and new.last_entry < (kept := self.last_kept(new.ledger_id)):
            self._broken(
                "I1", f"ledger {new.ledger_id} was cut short: closed at {new.last_entry}, entry {kept} is known"
            )
        self._swapped(old, new)

    def last_kept(self, ledger_id: int) -> int:
        """The entry before which the ledger must not be closed."""
        acknowledged = self._cluster.ledgers[ledger_id].acknowledged
        if ledger_id not in self.may_lose:
            return max(acknowledged, default=-1)
        left: set[int] = set()
        for bookie in self._cluster.bookies:
            if bookie.settings.bookie_id not in self.gone:
                left |= bookie.promises[ledger_id]
        return next(
            (n - 1 for n in range(max(acknowledged, default=-1) + 1) if n not in left), max(acknowledged, default=-1)
        )

    def _swapped(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Those who are new in a fragment that had its end before."""
        bookies = {bookie.settings.bookie_id: bookie for bookie in self._cluster.bookies}
        for number, (was, held) in enumerate(zip(holdings(old), holdings(new), strict=False)):
            if was.last_entry is None or (was.first_entry, was.last_entry) != (held.first_entry, held.last_entry):
                continue
            for place, (before, share) in enumerate(zip(was.shares, held.shares, strict=True)):
                if before.bookie_id == share.bookie_id:
                    continue
                self.swaps += 1
                wanted = {n for start in share.starts for n in range(start, was.last_entry + 1, share.step)}
                if incomplete := wanted - self.had(bookies[share.bookie_id], new.ledger_id, wanted):
                    self._broken(
                        "I7",
                        f"a copy was replaced by a worse one: in fragment {number}, place {place} of ledger "
                        f"{new.ledger_id} {share.bookie_id} lacks {sorted(incomplete)}",
                    )

    def had(self, bookie: Bookie, ledger_id: int, wanted: set[int]) -> set[int]:
        """What the bookie had when its copy of the entries `wanted` was done."""
        return bookie.promises[ledger_id]

    # --- marks ------------------------------------------------------------------------------------------------------

    def _mark(self, path: str, old: bytes | None, new: bytes | None) -> None:
        """A mark is a node named after the ledger, whose child has the value."""
        parent, _, name = path.rpartition("/")
        if name.startswith("L"):
            parent = path
        elif not parent.rpartition("/")[2].startswith("L"):
            return  # a partition
        ledger_id = int(parent.removeprefix(self.marks).replace("/", "").replace("L", ""))
        self._marked_at.setdefault(ledger_id, self._world.loop.now)
        if parent == path:
            return
        reasons = _lost(old)
        taken_off = reasons.keys() - _lost(new).keys()
        data = self.data(self.tree.path_of(ledger_id))
        if not taken_off or data is None:
            return
        metadata = self.tree.codec.decode(ledger_id, data)
        named = {name for fragment in metadata.fragments for name in fragment.bookies}
        needed = {
            name
            for name in taken_off & named
            if name in self.gone or (self._leaves(name) and reasons[name] not in _BEFORE_A_DRAIN)
        }
        needed -= {name for name in needed if self._misses_nothing(metadata, name)}
        if needed and metadata.state is LedgerState.CLOSED:
            self._broken("I10", f"a mark is lost: ledger {ledger_id} names {', '.join(sorted(needed))}")

    def _misses_nothing(self, metadata: LedgerMetadata, bookie_id: str) -> bool:
        """Whether it seems to be there, as one that dies does for a while, and the ledger has no entry for it."""
        registered = any(self.data(paths.available(self.root, bookie_id, read_only=one)) for one in (False, True))
        registered |= self._world.loop.now - self._changed_at.get(bookie_id, -SEEN_WITHIN_S) < SEEN_WITHIN_S
        shares = [share for held in holdings(metadata) for share in held.shares if share.bookie_id == bookie_id]
        return registered and not self._leaves(bookie_id) and not any(share.entries for share in shares)

    def _leaves(self, bookie_id: str) -> bool:
        return self.data(paths.draining(self.root, bookie_id)) is not None

    def _recovers(self, ledger_id: int) -> None:
        """For the sake of a mark, if it has one: people may be quicker."""
        task = asyncio.current_task()
        if task is not None and " bkpy bookie " in task.get_name():
            return  # a command's own worker, which may have come upon it before it was marked
        marked_at = self._marked_at.get(ledger_id)
        if marked_at is not None and self._world.loop.now < marked_at + self.grace_s:
            self._broken("I10", f"ledger {ledger_id} was recovered, and its writer still had time")
        if why := self.needless(ledger_id):
            self._broken("I10", f"ledger {ledger_id} was recovered, and {why}")

    def needless(self, ledger_id: int) -> str:
        """Why the end of its writer gains nothing, as the metadata have been for a while: workers see them late."""
        data = self.data(self.tree.path_of(ledger_id))
        mark = self.mark_of(ledger_id)
        if data is None or mark is None:
            return ""
        metadata = self.tree.codec.decode(ledger_id, data)
        if metadata.state is not LedgerState.OPEN:
            return ""
        ensemble = set(metadata.fragments[-1].bookies)
        settled, writable = self._registered(within_s=SEEN_WITHIN_S)
        named = ensemble & mark.keys()
        if named and all(mark[name] == LossReason.LOST and name in settled for name in named):
            return f"{', '.join(sorted(named))} was back"
        if any(mark[name] == LossReason.REBUILDING or self._limbo_seen(name) for name in named):
            return ""  # until the ledger is closed it can't tell what it has lost
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        sets = [{metadata.fragments[-1].bookies[i] for i in write_set(n, size, quorum)} for n in range(size)]
        if not writable - ensemble and all(len(members & settled) >= metadata.ack_quorum for members in sets):
            return "no bookie could take a place"
        return ""

    def _limbo_seen(self, name: str) -> bool:
        """Whether a worker may see that the bookie is in limbo, before its record says so."""
        now = self._world.loop.now
        nodes = (self.data(paths.available(self.root, name, read_only=read_only)) for read_only in (False, True))
        return any(map(self.says_limbo, nodes)) or now - self._in_limbo_at.get(name, -SEEN_WITHIN_S) < SEEN_WITHIN_S

    def mark_of(self, ledger_id: int) -> dict[str, str] | None:
        """By bookie, why it is marked."""
        path = self.tree.layout.path_of(self.marks.rstrip("/"), ledger_id)
        token = self.data(path)
        value = None if token is None else self.data(f"{path}/{token.decode()}")
        return None if value is None else _lost(value)

    def _registered(self, within_s: float) -> tuple[set[str], set[str]]:
        """The bookies that have been registered, and in no limbo, for so long; and all that were writable since."""
        settled, writable = set(), set()
        now = self._world.loop.now
        for bookie in self._cluster.bookies:
            name = bookie.settings.bookie_id
            if now - self._changed_at.get(name, 0.0) < within_s:
                writable.add(name)  # it may be: nothing is said of it
                continue
            data = self.data(paths.available(self.root, name, read_only=False))
            if data is not None:
                writable.add(name)
            data = data or self.data(paths.available(self.root, name, read_only=True))
            if data is not None and not self.says_limbo(data):
                settled.add(name)
        return settled, writable


def _lost(data: bytes | None) -> dict[str, str]:
    """By bookie, why it is in the record."""
    return {} if data is None else {name: one["reason"] for name, one in json.loads(data)["lost"].items()}
