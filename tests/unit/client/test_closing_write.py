"""The write that closes a ledger: only over the value that its closer has read, or has looked at since."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.in_process import runtime_here, stored
from tests.unit.metadata.new_ledgers import builder
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Troubled

import bkpy
from bkpy.client.close import Closed, close_ledger, read_again
from bkpy.errors import MetadataConflictError
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Changed, NotDone, Superseded, Unknown
from bkpy.metadata.store.store import Delete, Put
from bkpy.protocol.ledger.close_conflict import Closer, rebased
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

ROOT = "/ledgers"


class Ledger:
    """One ledger, and its catalog on a session that a test puts into trouble."""

    def __init__(self, catalog: LedgerCatalog, store: Troubled, metadata: LedgerMetadata) -> None:
        self.catalog = catalog
        self.store = store
        self.metadata = metadata

    async def changed(self, change: Any) -> None:
        """Somebody else writes the metadata."""
        metadata, version = await self.catalog.read(0)
        stored(await self.catalog.write(change(metadata), version))

    async def close(self, closer: Closer = Closer.WRITER, *, conflicts_max: int = 20, **rest: Any) -> Any:
        return await close_ledger(self.catalog, self.metadata, 0, 4, 40, closer, conflicts_max=conflicts_max, **rest)


@pytest.fixture
async def ledger() -> Ledger:
    store = Troubled(MemoryStore(runtime_here()))
    catalog = (await init_cluster(store, ROOT)).catalog
    created = await catalog.create(builder())
    assert isinstance(created, Created)
    return Ledger(catalog, store, created.metadata)


def tagged(metadata: LedgerMetadata) -> LedgerMetadata:
    return dataclasses.replace(metadata, custom_metadata={"by": b"somebody else"})


async def test_it_keeps_what_somebody_else_has_written(ledger: Ledger) -> None:
    await ledger.changed(tagged)
    closed = await ledger.close()
    assert isinstance(closed, Closed)
    assert closed.metadata == tagged(ledger.metadata).closed(4, 40)
    assert await ledger.catalog.read(0) == (closed.metadata, closed.version)
    assert closed.version == 2


async def test_a_writer_never_closes_what_somebody_is_recovering(ledger: Ledger) -> None:
    await ledger.changed(lambda metadata: metadata.in_recovery())
    with pytest.raises(bkpy.LedgerFencedError) as fenced:
        await ledger.close()
    assert not fenced.value.outcome_unknown
    assert (await ledger.catalog.read(0))[0] == ledger.metadata.in_recovery()


@pytest.mark.parametrize("script", [[], [REPLY_LOST], [REQUEST_LOST]])
async def test_a_writer_leaves_another_end_as_it_is(ledger: Ledger, script: list[str]) -> None:
    await ledger.changed(lambda metadata: metadata.closed(2, 20))
    ledger.store.script.extend(script)
    with pytest.raises(bkpy.LedgerClosedError, match="at entry 2"):
        await ledger.close()
    assert (await ledger.catalog.read(0))[0] == ledger.metadata.closed(2, 20)
    found = await ledger.close(Closer.RECOVERY)  # whose end is that of whoever was first
    assert isinstance(found, Closed)
    assert found.metadata.last_entry == 2


async def test_it_finds_its_own_end(ledger: Ledger) -> None:
    for _ in range(2):
        closed = await ledger.close()
        assert isinstance(closed, Closed)
        assert (closed.metadata.last_entry, closed.version) == (4, 1)


async def test_a_recovery_does_not_close_what_became_open(ledger: Ledger) -> None:
    await ledger.changed(tagged)
    with pytest.raises(MetadataConflictError, match="open again"):
        await ledger.close(Closer.RECOVERY)


async def test_a_ledger_that_is_gone_can_not_be_closed(ledger: Ledger) -> None:
    await ledger.changed(tagged)
    path = ledger.catalog.path_of(0)
    # Gone before the write, or between the write, which is refused, and the look at who wrote.
    ledger.store.script.extend([None, lambda: ledger.store.tree.apply(Delete(path), 0)])
    for _ in range(2):
        with pytest.raises(bkpy.NoSuchLedgerError, match="deleted while it was open"):
            await ledger.close()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([AWAY], NotDone),
        ([REPLY_LOST, AWAY], Unknown),
        ([REPLY_LOST, None, AWAY], Unknown),
        (["somebody", AWAY], NotDone),  # refused, and who wrote can't be looked at: this end is not there
        ([REQUEST_LOST, "somebody", None, None, AWAY], NotDone),
        ([REPLY_LOST, "somebody", None, None, AWAY], Unknown),  # it may have been there before somebody else's write
    ],
)
async def test_what_is_said_of_it_is_no_more_than_is_known(ledger: Ledger, script: list[Any], expected: type) -> None:
    def somebody() -> None:
        path, tree = ledger.catalog.path_of(0), ledger.store.tree
        fresh = LedgerMetadata.decode(0, tree.node(path).data)
        tree.apply(Put(path, tagged(fresh).encode(), tree.node(path).version), 0)

    ledger.store.script.extend([somebody if turn == "somebody" else turn for turn in script])
    assert type(await ledger.close()) is expected
    assert not ledger.store.script
    closed = await ledger.close()
    assert isinstance(closed, Closed)
    assert (closed.metadata.last_entry, closed.metadata.length) == (4, 40)


async def test_with_a_single_repetition_it_closes_what_others_changed_before_and_gives_up_when_they_go_on(
    ledger: Ledger,
) -> None:
    path, tree = ledger.catalog.path_of(0), ledger.store.tree

    def somebody() -> None:
        node = tree.node(path)
        tree.apply(Put(path, tagged(LedgerMetadata.decode(0, node.data)).encode(), node.version), 0)

    await ledger.changed(tagged)
    ledger.store.script.extend([None, None, None, somebody])  # the write, the look, and once more in between
    with pytest.raises(MetadataConflictError, match="kept changing") as conflict:
        await ledger.close(conflicts_max=1)
    assert conflict.value.retriable
    assert (await ledger.catalog.read(0))[0].state is LedgerState.OPEN
    assert isinstance(await ledger.close(conflicts_max=1), Closed)  # though it begins with what it knew at first


async def test_after_the_last_conflict_it_looks_whether_the_ledger_is_as_wanted(ledger: Ledger) -> None:
    path, tree = ledger.catalog.path_of(0), ledger.store.tree

    def somebody() -> None:
        node = tree.node(path)
        tree.apply(Put(path, LedgerMetadata.decode(0, node.data).closed(4, 40).encode(), node.version), 0)

    await ledger.changed(tagged)
    ledger.store.script.extend([None, None, None, somebody])
    assert isinstance(await ledger.close(conflicts_max=1), Closed)


async def test_a_recovery_brings_its_fragments_into_a_value_that_was_changed(ledger: Ledger) -> None:
    marked = ledger.metadata.new_fragment(2, ("a", "b", "d")).in_recovery()
    await ledger.changed(lambda metadata: marked)
    await ledger.changed(lambda metadata: metadata.replace_bookie(0, 0, "e"))
    ours = marked.new_fragment(3, ("a", "b", "c"))
    ledger.metadata = ours
    closed = await ledger.close(Closer.RECOVERY, rebase=lambda fresh: rebased(fresh, marked, ours))
    assert isinstance(closed, Closed)
    assert closed.metadata.fragments == (
        Fragment(0, ("e", "b", "c")),
        Fragment(2, ("a", "b", "d")),
        Fragment(3, ("a", "b", "c")),
    )


@pytest.mark.parametrize("refused", [Changed(), Superseded()])
async def test_whoever_marks_a_ledger_is_told_whether_the_mark_may_be_there(
    ledger: Ledger, refused: Changed | Superseded
) -> None:
    ledger.store.script.extend([AWAY])
    with pytest.raises(bkpy.MetadataUnavailableError) as failure:
        await read_again(ledger.catalog, 0, refused)
    assert failure.value.outcome_unknown == isinstance(refused, Superseded)
    assert failure.value.ledger_id == 0
    assert await read_again(ledger.catalog, 0, refused) == (ledger.metadata, 0)
