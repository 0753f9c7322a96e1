"""Writes a sealed memtable generation out: blocks into the entry log, rows into the index, in one checkpoint.

Invariants: nothing is in the index before its blocks are synced; keys, fences and marks are in the same transaction;
a batch that overlaps what is stored, or another batch, takes an id over only with a record whose checksum is right.
Everything here blocks and runs on the shard's flush worker, in short steps so that the event loop gets the interpreter.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, chain
from operator import add, itemgetter, le
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.config.base import MIB
from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.frame import KEEP_INTERPRETER
from bkpy.protocol.wire.records import HEADER_BYTES, RecordCodec, last_add_confirmed_at, walk
from bkpy.storage.index.changes import Changes
from bkpy.storage.index.ids import SPAN_MAX, Ids
from bkpy.storage.index.index import BlockRow, KeptBatch, LedgerRow, LogRow, ShardRow, get_ledger
from bkpy.storage.memtable.generation import Generation, index_frames
from bkpy.storage.reads.ranges import verifies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bkpy.buffers import Bytes
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction
    from bkpy.storage.checkpoint.kept_runs import KeptRuns
    from bkpy.storage.entry_log.entry_log import BlockWriter, Place
    from bkpy.storage.index.living import LivingBytes
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.memtable.overlaps import Batch

BLOCK_EFFORT: Final = 50
LEDGER_EFFORT: Final = 20
INDEXED_PER_EFFORT: Final = 4  # putting a batch into its ledger's list costs a fraction of writing it

_first = itemgetter(0)


class Sizes(NamedTuple):
    """The sizes of blocks and of their parts."""

    block_bytes: int
    run_bytes: int = 4096  # between two places where a reader may begin
    part_batches: int = 5000  # looked at in one go: calls into C don't let the event loop in


class BlockDraft(NamedTuple):
    """A block before it is written. A weak one has no data: its ids' records can't be identified.

    `kept`: the place where its data lies already, so that only the index changes.
    """

    ids: Ids
    runs: list[tuple[int, int]]
    data: list[Bytes]
    weak: bool
    kept: Place | None = None


def _ids(spans: Sequence[tuple[int, int]]) -> Ids:
    """The set that ascending (first, count) spans make, at most SPAN_MAX wide."""
    base = spans[0][0]
    if len(spans) == 1:
        return Ids(base, spans[0][1])
    bits = 0
    for first, count in spans:
        bits |= ((1 << count) - 1) << (first - base)
    return Ids.from_bits(base, bits)


def drafts(
    ledger_id: int,
    batches: Sequence[Batch],
    last_entry: int,
    sizes: Sizes,
    place_of: Callable[[Batch], Place | None] | None = None,
) -> Iterator[BlockDraft]:
    """The blocks of one ledger's batches, disjoint. `last_entry`: no id above it is stored already.

    `place_of`: returns the place where a batch that overlaps nothing stays, None if it must be written.
    """
    ordered = sorted(batches, key=_first)
    plain: list[Iterator[BlockDraft]] = []
    last = last_entry
    for start in range(0, len(ordered), sizes.part_batches):
        found = _plain(ordered[start : start + sizes.part_batches], last, sizes, place_of)
        if found is None:
            return _merged(ledger_id, batches, last_entry, sizes)
        last, made = found
        plain.append(made)
    return chain.from_iterable(plain)


def _plain(
    batches: Sequence[Batch], last: int, sizes: Sizes, place_of: Callable[[Batch], Place | None] | None
) -> tuple[int, Iterator[BlockDraft]] | None:
    """(highest id, blocks) of batches that follow `last` and one another: joined without looking into them.

    None if any doesn't.
    """
    firsts, counts, strides, bodies, starts, ends = zip(*batches, strict=True)
    followers = list(map(add, firsts, counts))
    if not (set(strides) == {1} or set(counts) == {1}) or firsts[0] <= last or max(counts) > SPAN_MAX:
        return None
    if not all(map(le, followers, firsts[1:])):
        return None
    if place_of is not None:
        return followers[-1] - 1, _around_kept(batches, sizes, place_of)
    return followers[-1] - 1, _sliced(firsts, counts, bodies, starts, ends, sizes)


def _around_kept(
    batches: Sequence[Batch], sizes: Sizes, place_of: Callable[[Batch], Place | None]
) -> Iterator[BlockDraft]:
    """The blocks of plain batches, some of which stay where they are; no block reaches across such a batch."""
    between: list[Batch] = []
    for batch in batches:
        place = place_of(batch)
        if place is None:
            between.append(batch)
            continue
        if between:
            yield from _blocks_of(between, sizes)
            between = []
        first, count, _, body, start, end = batch
        yield BlockDraft(Ids(first, count), [], [body[start:end]], False, place)
    if between:
        yield from _blocks_of(between, sizes)


def _blocks_of(batches: Sequence[Batch], sizes: Sizes) -> Iterator[BlockDraft]:
    firsts, counts, _, bodies, starts, ends = zip(*batches, strict=True)
    return _sliced(firsts, counts, bodies, starts, ends, sizes)


def _sliced(
    firsts: Sequence[int],
    counts: Sequence[int],
    bodies: Sequence[Bytes],
    starts: Sequence[int],
    ends: Sequence[int],
    sizes: Sizes,
) -> Iterator[BlockDraft]:
    """The blocks of plain batches; their slices are made for the first block, and freed with the last."""
    parts: list[Bytes] = [body[start:end] for body, start, end in zip(bodies, starts, ends, strict=True)]
    if firsts[-1] + counts[-1] - firsts[0] == sum(counts):
        yield from contiguous(firsts[0], counts, parts, sizes)
    else:
        yield from joined(zip(firsts, counts, parts, strict=True), sizes)


def contiguous(first: int, counts: Sequence[int], parts: list[Bytes], sizes: Sizes) -> Iterator[BlockDraft]:
    """Blocks of about `block_bytes` from parts without gaps between them; as `joined`, at a fraction of its time.

    The hottest part of a flush, so without a step of Python for each batch.
    """
    used = [0, *accumulate(map(len, parts))]
    rank = [0, *accumulate(counts)]
    block_bytes, run_bytes, _ = sizes
    begin = 0
    while begin < len(parts):
        end = min(bisect_right(used, used[begin] + block_bytes), bisect_right(rank, rank[begin] + SPAN_MAX)) - 1
        end = max(end, begin + 1)
        runs = [(0, 0)]
        at = begin
        while (at := bisect_left(used, used[at] + run_bytes, at, end)) < end:
            runs.append((rank[at] - rank[begin], used[at] - used[begin]))
        yield BlockDraft(Ids(first + rank[begin], rank[end] - rank[begin]), runs, parts[begin:end], False)
        begin = end


def joined(parts: Iterable[tuple[int, int, Bytes]], sizes: Sizes) -> Iterator[BlockDraft]:
    """Blocks of about `block_bytes` from (first id, count, records of first, first + 1, ...) in ascending order."""
    data: list[Bytes] = []
    runs: list[tuple[int, int]] = []
    spans: list[tuple[int, int]] = []  # (first id, count) without gaps, all but the one that goes on
    used = rank = run_at = begin = base = following = 0
    for first, count, part in parts:
        size = len(part)
        if data and (used + size > sizes.block_bytes or first + count - base > SPAN_MAX):
            spans.append((begin, following - begin))
            yield BlockDraft(_ids(spans), runs, data, False)
            data, runs, spans = [], [], []
        if not data:
            used = rank = run_at = 0
            runs.append((0, 0))
            begin = base = first
        elif first != following:
            spans.append((begin, following - begin))
            begin = first
        if used - run_at >= sizes.run_bytes:
            run_at = used
            runs.append((rank, used))
        data.append(part)
        used += size
        rank += count
        following = first + count
    if data:
        spans.append((begin, following - begin))
        yield BlockDraft(_ids(spans), runs, data, False)


def _merged(ledger_id: int, batches: Sequence[Batch], last_entry: int, sizes: Sizes) -> Iterator[BlockDraft]:
    """Batches that are striped or overlap something: walked, later copies counting only if their checksum is right."""
    codec = RecordCodec(ledger_id)
    records: dict[int, Bytes] = {}
    doubtful: set[int] = set()
    for first, count, stride, body, start, end in batches:
        view = memoryview(body)[start:end]
        claimed = range(first, first + count * stride, stride)
        try:
            headers = list(walk(view))
        except CorruptDataError:
            headers = []
        if [header.entry_id for header in headers] != list(claimed):
            doubtful.update(claimed)
            continue
        for header in headers:
            entry_id = header.entry_id
            overlaps = entry_id in records or entry_id <= last_entry
            if overlaps and not verifies(codec, view, header):
                doubtful.add(entry_id)
            else:
                records[entry_id] = view[header.offset : header.end]
    yield from joined(((entry_id, 1, records[entry_id]) for entry_id in sorted(records)), sizes)
    yield from _weak(sorted(doubtful.difference(records)))


def _weak(entry_ids: Sequence[int]) -> Iterator[BlockDraft]:
    start = 0
    for i in range(1, len(entry_ids) + 1):
        if i == len(entry_ids) or entry_ids[i] - entry_ids[start] >= SPAN_MAX:
            bits = 0
            for entry_id in entry_ids[start:i]:
                bits |= 1 << (entry_id - entry_ids[start])
            yield BlockDraft(Ids.from_bits(entry_ids[start], bits), [(0, 0)], [], True)
            start = i


def last_add_confirmed(batch: Batch) -> int:
    """The last add confirmed that the batch's first record carries: that of all its records."""
    _, _, _, body, start, end = batch
    if end - start < HEADER_BYTES:
        return -1
    return last_add_confirmed_at(body, start)


def check_no_less(ledger_id: int, info: LedgerInfo, row: LedgerRow) -> None:
    """Fail rather than write a state that forgets a fence, a key or entries of the ledger's row: it would be wrong.

    A key without entries may have given way to another one, and its fence with it.
    """
    if row.key and info.key != row.key:
        known = not row.blocks and info.limbo >= row.limbo
    else:
        known = info.fenced >= row.fenced and info.limbo >= row.limbo
        if row.key:  # a fence asked for stays, but for that of a key which was only noted
            known = known and info.fence_of_limbo <= (row.fence_of_limbo or not row.fenced)
    if not known:
        raise AssertionError(f"the state of ledger {ledger_id} forgets something of its row")


def kept_row(draft: BlockDraft, place: Place) -> BlockRow:
    """The row of a batch that stays where it is."""
    checksum = 0
    for part in draft.data:
        checksum = crc32c(part, checksum, KEEP_INTERPRETER)
    return BlockRow(draft.ids, place, KeptBatch(draft.ids.first, draft.ids.count, checksum))


class WrittenLedgers:
    """The news of the ledgers that a checkpoint wrote; 24 bytes each, since there may be very many."""

    def __init__(self) -> None:
        self.limbo: list[int] = []  # ledgers whose rows say that they are in limbo
        self._numbers = array("q")

    def add(self, ledger_id: int, row: LedgerRow) -> None:
        """Add a ledger and its new row."""
        self._numbers.extend((ledger_id, row.last_entry, row.lac))
        if row.limbo:
            self.limbo.append(ledger_id)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, highest entry id, last add confirmed) of each."""
        numbers = iter(self._numbers)
        return zip(numbers, numbers, numbers, strict=True)


class Flushed(NamedTuple):
    """The result of a checkpoint: the news of its ledgers, and the shard's row."""

    shard: ShardRow
    written: WrittenLedgers


class Flush:
    """One checkpoint of one shard. Call `step` until it returns False, then `commit`."""

    def __init__(
        self,
        store: OrderedStore,
        shard: ShardRow,
        generation: Generation,
        infos: Mapping[int, LedgerInfo],
        *,
        living: LivingBytes,
        open_log: Callable[[int], BlockWriter],
        log: BlockWriter | None,
        settings: BookieSettings,
        unlisted_logs: Mapping[int, LogRow],
        kept: KeptRuns,
    ) -> None:
        self._store = store
        self._generation = generation
        self._infos = infos  # of the ledgers whose states the generation must write
        self._open_log = open_log
        self.log = log  # the one being filled, when the flush has ended
        self._log_bytes_max = settings.entry_log_max_size_mb * MIB
        self._log_blocks_max = settings.entry_log_blocks_max
        self._sizes = Sizes(settings.block_bytes, settings.block_run_bytes, settings.flush_part_batches)
        self._step_batches = settings.flush_step_batches  # how long the event loop may have to wait
        self._changes = Changes(shard, living, settings.checkpoint_commit_ledgers)
        self._written = WrittenLedgers()
        self._wrote = False
        self._kept = kept
        self._new_logs: list[BlockWriter] = []
        self._committing = False
        self._steps = self._run()
        for log_id, row in unlisted_logs.items():
            self._changes.unlisted_log(log_id, row)

    def step(self) -> bool:
        """Do a little; False when all blocks are written."""
        return next(self._steps, False)

    def _run(self) -> Iterator[bool]:
        by_ledger: defaultdict[int, list[Batch]] = defaultdict(list)
        frames = self._generation.frames
        work = 0
        for frame in frames:
            self._kept.take(frame)
            work += 10 + index_frames((frame,), by_ledger) // INDEXED_PER_EFFORT
            if work >= self._step_batches:
                work = 0
                yield True
        self._kept.choose()
        if self._kept.any:
            self._changes.shard = self._changes.shard._replace(keeps=True)
        for ledger_id in sorted(by_ledger.keys() | self._infos.keys()):
            for effort in self._ledger(ledger_id, by_ledger.pop(ledger_id, [])):
                work += effort
                if work >= self._step_batches:
                    work = 0
                    yield True

    def _ledger(self, ledger_id: int, batches: Sequence[Batch]) -> Iterator[int]:
        """Write one ledger's blocks and gather its rows, yielding how much was done (1 is about a batch)."""
        with self._store.read() as txn:
            yield from self._ledger_in(txn, ledger_id, batches)

    def _ledger_in(self, txn: ReadTransaction, ledger_id: int, batches: Sequence[Batch]) -> Iterator[int]:
        row = get_ledger(txn, ledger_id)
        info = self._infos.get(ledger_id)
        if info is not None:
            if row is not None:
                check_no_less(ledger_id, info, row)
            row = (row or LedgerRow(b"", fenced=False, limbo=False))._replace(
                key=info.key,
                fenced=info.fenced,
                limbo=info.limbo,
                explicit_lac=info.explicit_lac,
                fence_of_limbo=info.fence_of_limbo,
            )
        if row is None:
            raise AssertionError(f"ledger {ledger_id} has entries, but was never made known")
        strong: list[BlockRow] = []
        weak: list[BlockRow] = []
        place_of = self._kept.place_of if self._kept.any else None
        for draft in drafts(ledger_id, batches, row.last_entry, self._sizes, place_of):
            if draft.kept is not None:
                strong.append(kept_row(draft, draft.kept))
            else:
                (weak if draft.weak else strong).append(BlockRow(draft.ids, self._append(ledger_id, draft)))
            yield BLOCK_EFFORT + len(draft.data)
        if batches:
            row = row._replace(lac=max(row.lac, last_add_confirmed(batches[-1])))
        self._written.add(ledger_id, self._changes.ledger(txn, ledger_id, row, strong, weak))
        yield LEDGER_EFFORT

    def _append(self, ledger_id: int, draft: BlockDraft) -> Place:
        if self.log is not None and (self.log.size >= self._log_bytes_max or self.log.blocks >= self._log_blocks_max):
            self.finish_log()
        if self.log is None:
            log_id = self._changes.shard.next_log_id
            self._changes.shard = self._changes.shard._replace(next_log_id=log_id + 1)
            self.log = self._open_log(log_id)
            self._new_logs.append(self.log)
        self._wrote = True
        return self.log.append(ledger_id, draft.ids, draft.runs, draft.data)

    def finish_log(self) -> None:
        """Close the log that is being filled; its row goes into this checkpoint's transaction."""
        if self.log is not None:
            blocks = self.log.finish()
            self._changes.finished_log(self.log.log_id, LogRow(self.log.size, blocks, True))
            self.log = None

    def abandon(self) -> None:
        """After an error: remove logs that no row refers to, so that retries don't fill the disk."""
        if not self._committing:  # else it may have happened
            self._kept.abandon()
            for log in self._new_logs:
                log.remove()
            self.log = None if self.log in self._new_logs else self.log

    def commit(self, marks: tuple[Mark, ...], close_log: bool) -> Flushed:
        """Sync the log, then commit the rows and the marks."""
        if close_log:
            self.finish_log()
        elif self.log is not None and self._wrote:
            self.log.sync()
        for log_id, size in self._kept.finish(all_of_them=close_log).items():
            self._changes.finished_log(log_id, LogRow(size, 0, False))
        self._changes.shard = self._changes.shard._replace(marks=marks)
        self._committing = True
        self._changes.commit(self._store)
        self._kept.committed()
        return Flushed(self._changes.shard, self._written)
