"""Replays the journals at a start: fills the shards with the records behind their marks, and checkpoints them.

Invariants: a frame goes to the shards whose marks lie before it; limbo is durable before a mark moves past the damage
that is its reason; no mark moves past a frame that is not on the disk; a journal is changed only by cutting off a torn
frame, which was never acknowledged unless everything is in limbo; a directory whose index is rebuilt keeps everything
found in its logs, because that may include a later life of a deleted ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError, ProtocolError
from bkpy.protocol.wire.messages import decode_add
from bkpy.storage.journal.format import Record, RecordKind, decode_ledger, decode_records, file_name
from bkpy.storage.journal.reader import (
    Damage,
    JournalFrame,
    JournalReader,
    cut_torn_frame,
    refuse,
    write_again,
    write_header_again,
)
from bkpy.storage.ledgers.info import take_explicit_lac
from bkpy.storage.ledgers.ledgers import Ledgers, checkpoint_errors
from bkpy.storage.memtable.split import split

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import Files
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard


class Replay:
    """The replay of all journals of a bookie, at its start. `ends`: where each journal goes on.

    `lost`: acknowledged entries are missing anyway, and everything is in limbo, so damage doesn't refuse the start.
    `damaged`: acknowledged data may be lost, and everything is in limbo for it.
    `rebuilt`: the numbers of the shards whose indexes are rebuilt from logs; their marks are the journals' beginnings.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        directories: Sequence[str],
        settings: BookieSettings,
        files: Files,
        observer: StorageObserver,
        *,
        lost: bool = False,
        rebuilt: Collection[int] = (),
    ) -> None:
        self.ends: list[Mark] = [
            min((shard.row.marks[number] for shard in ledgers.shards), key=lambda mark: mark.sequence)
            for number in range(len(directories))
        ]
        self.damaged = False
        self._ledgers = ledgers
        self._directories = directories
        self._settings = settings
        self._files = files
        self._observer = observer
        self._lost = lost
        self._rebuilt = rebuilt
        self._keys: dict[int, bytes] = {}  # of ledgers in a rebuilt index, stored when all records are read
        self._stored: set[int] = set()  # those of them that have entries in the journals
        self._ended: set[int] = set()  # those of them of which a life ended whose key is in no journal
        self._ahead: set[int] = set()  # ledgers whose entries in an index are under a later key than the last record's

    async def run(self) -> None:
        """Replay all journals; returns when everything that was read is in the indexes."""
        for number, directory in enumerate(self._directories):
            await self._replay_journal(number, directory)
        for ledger_id, key in self._keys.items():
            if ledger_id in self._ended and ledger_id not in self._stored:
                continue  # what is in the logs may be of the life before, under its key: the metadata decide
            if (info := self._ledgers.load_now(ledger_id)) is not None and not info.key:
                info.key = key
                self._ledgers.touch(info)
            await self._make_room()
        # A rebuilt index's marks pass even a journal with nothing to store: its damage is known now.
        if self._rebuilt or not all(s.active.empty and not s.deleted.pending_delete for s in self._ledgers.shards):
            for shard in self._ledgers.shards:
                await self._checkpoint(shard)

    async def _checkpoint(self, shard: Shard) -> None:
        with checkpoint_errors(shard):
            await self._ledgers.checkpoint(shard, lambda: self.ends)

    async def _make_room(self) -> None:
        self._ledgers.trim()
        for shard in self._ledgers.shards:
            if shard.memory_bytes >= self._ledgers.generation_bytes_max:
                await self._checkpoint(shard)

    async def _replay_journal(self, number: int, directory: str) -> None:
        read_bytes = self._settings.journal_read_bytes
        journal = JournalReader(self._files, directory, number, self.ends[number], read_bytes=read_bytes)
        frames = size = damages = 0
        chain = iter(journal)
        following = next(chain, None)
        while (frame := following) is not None:
            following = next(chain, None)
            damages = self._judge(journal, damages)
            if following is None:  # each other frame was synced before the next was written
                write_again(self._files, directory, frame)
            await self._apply(number, frame)
            self.ends[number] = frame.end
            frames, size = frames + 1, size + len(frame.body)
            await self._make_room()
        for path in journal.begun:
            write_header_again(self._files, path)
        if journal.begun:  # marks will lie in the last one, whose name may not have been synced
            self._files.sync_dir(directory)
        furthest = max((shard.row.marks[number] for shard in self._ledgers.shards), key=lambda mark: mark.sequence)
        if journal.end.sequence < furthest.sequence:
            journal.damages.append(_cut_short(directory, journal.end, furthest))
        self._judge(journal, damages)
        # The next replay would skip a frame numbered below some mark, so new frames go behind all marks.
        self.ends[number] = max(journal.end, furthest, key=lambda mark: mark.sequence)
        if journal.torn is not None:
            path, offset = journal.torn
            copies_max = self._settings.journal_max_backups
            cut_torn_frame(self._files, path, offset, read_bytes=read_bytes, copies_max=copies_max)
            sure = not self._lost and journal.end.sequence >= furthest.sequence  # no checkpoint has relied on it
            standing = "never acknowledged" if sure else "perhaps acknowledged"
            report = self._observer.cut if sure else self._observer.damage
            report(f"a torn frame at offset {offset}, {standing}, was cut; a copy is in {path}.broken", path)
        for path in journal.unfinished:  # an earlier start found no space and left them
            self._files.unlink(path)
        self._observer.replayed(frames, size)

    def _judge(self, journal: JournalReader, seen: int) -> int:
        """Act on damage that was found since the last frame; returns the number of damaged places so far."""
        if len(journal.damages) > seen:
            if self._settings.journal_damage == "refuse" and not self._lost:
                raise refuse(journal.damages)
            for damage in journal.damages[seen:]:
                self._observer.damage(f"at offset {damage.offset}: {damage.what}", damage.path)
            self._ledgers.distrust_everything()
            self.damaged = True
        return len(journal.damages)

    async def _apply(self, number: int, frame: JournalFrame) -> None:
        for record in decode_records(frame.body, frame.records):
            if record.kind == RecordKind.ADD:
                self._apply_add(number, frame.sequence, record)
            elif record.kind == RecordKind.DELETED:
                await self._apply_deleted(number, frame.sequence, decode_ledger(record.head))
            else:
                self._apply_state(number, frame.sequence, record)

    def _apply_add(self, number: int, sequence: int, record: Record) -> None:
        try:
            columns = decode_add(record.head, len(record.body))
        except ProtocolError as e:
            raise CorruptDataError(f"an add record of the journal can't be read: {e}") from e
        if self._rebuilt:
            self._stored.update(columns.ledger_ids)
        over = {
            i
            for i in set(columns.ledger_ids)
            if self._ledgers.load_now(i) is None and not self._goes_on(number, sequence, i)
        }

        nobody = -1

        def owner_of(ledger_id: int) -> int:
            return nobody if ledger_id in over else self._ledgers.shard_of(ledger_id)

        for owner, part in split(columns, record.head, record.body, owner_of).items():
            if owner != nobody and sequence >= self._ledgers.shards[owner].row.marks[number].sequence:
                self._ledgers.shards[owner].active.add(part.columns, part.body)

    def _goes_on(self, number: int, sequence: int, ledger_id: int) -> bool:
        """Make known a ledger that was just found unknown and has entries here; False if its life has ended.

        A life begins with a record that has the key. If a deleted ledger isn't known, no such record came before, in
        the journal or the index: its entries are of the life that ended, perhaps without a record of its end here.
        """
        if self._was_deleted(ledger_id):
            return False
        home = self._home(number, sequence, ledger_id)
        if self._ledgers.untrusted and sequence < self._ledgers.shards[home].row.marks[number].sequence:
            return False  # nothing of it is stored from here, and unseen ledgers are in doubt as it would be
        self._introduce_lost(ledger_id, home)
        return True

    def _introduce_lost(self, ledger_id: int, shard: int) -> None:
        """Make a ledger known whose key record is missing: only damage explains that."""
        if not self._ledgers.untrusted:
            raise CorruptDataError(
                "the journal has entries of a ledger whose key it doesn't have, although it isn't damaged",
                ledger_id=ledger_id,
            )
        self._ledgers.introduce(ledger_id, b"", shard)

    async def _apply_deleted(self, number: int, sequence: int, ledger_id: int) -> None:
        """Delete all of the ledger so far in each shard; later records in the journal are of another life.

        A rebuilt index may have that life already, from the logs: it keeps everything, for the collector. If the key of
        the ended life's entries isn't known, they don't speak for the next key that comes.
        """
        if self._rebuilt and ledger_id not in self._keys:
            self._stored.discard(ledger_id)
            self._ended.add(ledger_id)
        shards = self._ledgers.shards
        for shard in (shards[(ledger_id + turn) % len(shards)] for turn in range(len(shards))):
            if shard.number in self._rebuilt or sequence < shard.row.marks[number].sequence:
                continue
            if shard.holds(ledger_id):
                # With marks before this frame: it is read once more after a crash, which changes nothing.
                await self._checkpoint(shard)
            home = shard.number == ledger_id % len(shards)
            if home or shard.load_now((ledger_id,)).rows:
                self._ledgers.forget(ledger_id, shard)

    def _apply_state(self, number: int, sequence: int, record: Record) -> None:
        ledger_id = decode_ledger(record.head)
        info = self._ledgers.load_now(ledger_id)
        if info is not None and sequence < self._ledgers.shards[info.shard].row.marks[number].sequence:
            return
        body = bytes(record.body)
        shard = self._home(number, sequence, ledger_id) if info is None else info.shard
        if record.kind != RecordKind.EXPLICIT_LAC and shard in self._rebuilt:
            if info is not None and self._gives_way(ledger_id, body):
                info.fence_of_limbo = info.limbo  # the fence asked for with the other key goes with it
                info.explicit_lac = b""  # as does what was confirmed with it
            body = self._set_aside(ledger_id, body)
        if info is None and record.kind == RecordKind.EXPLICIT_LAC:
            if not self._goes_on(number, sequence, ledger_id):
                return
            info = self._ledgers.load_now(ledger_id)
        elif info is None:
            if self._has_ended(number, sequence, ledger_id):
                return
            info = self._ledgers.introduce(ledger_id, body, shard)
        elif record.kind != RecordKind.EXPLICIT_LAC and info.key and info.key != body:
            info = self._with_key(info, body)
        assert info is not None
        if record.kind != RecordKind.EXPLICIT_LAC:
            self._ahead.discard(ledger_id)
            if body and info.key not in (b"", body):
                self._ahead.add(ledger_id)
        if ledger_id in self._ahead:
            return  # what came with a key that gave way went with it
        if record.kind == RecordKind.FENCE:
            info.fenced, info.fence_of_limbo = True, False
            self._ledgers.fenced.add(ledger_id)
        elif record.kind == RecordKind.EXPLICIT_LAC:
            take_explicit_lac(info, body)
        if record.kind != RecordKind.EXPLICIT_LAC and not info.key:
            info.key = body
        self._ledgers.touch(info)

    def _gives_way(self, ledger_id: int, key: bytes) -> bool:
        """Whether the key noted last for a ledger in a rebuilt index gave way to this one."""
        return self._keys.get(ledger_id, key) != key and ledger_id not in self._stored

    def _set_aside(self, ledger_id: int, key: bytes) -> bytes:
        """Note the key of a ledger in a rebuilt index, and return an empty one for now.

        The last key counts, unless entries followed another one: then that one stays, so that no entry gets into a
        ledger to which it may not belong. For entries found in logs, their key is not known.
        """
        if ledger_id not in self._stored or ledger_id not in self._keys:
            self._keys[ledger_id] = key
        return b""

    def _with_key(self, info: LedgerInfo, key: bytes) -> LedgerInfo:
        """The ledger's state after a record with another key, to which its key gives way if it has no entries.

        If it has entries, the index is ahead of the record and has the last key.
        """
        shard, ledger_id = self._ledgers.shards[info.shard], info.ledger_id
        row = None
        if shard.highest(info) < 0:
            self._ledgers.replace_key(info, key, deleted=self._ledgers.has_tombstone_now(ledger_id))
            row = shard.load_now((ledger_id,)).rows.get(ledger_id)
        state = self._ledgers.load_now(ledger_id)
        assert state is not None
        if row is not None and row.key == key and row.fenced:
            # The row is ahead: the record of its fence comes later, and a checkpoint may come before that.
            state.fence_of_limbo = row.fence_of_limbo and (state.fence_of_limbo or not state.fenced)
            state.fenced = True
            self._ledgers.fenced.add(ledger_id)
        return state

    def _has_ended(self, number: int, sequence: int, ledger_id: int) -> bool:
        """Whether the key of a ledger that was just found unknown begins a life that has ended.

        Then the index that would make it known is ahead of the record, and no later record would end it again.
        """
        shards = self._ledgers.shards
        home = shards[ledger_id % len(shards)]
        return self._was_deleted(ledger_id) and sequence < home.row.marks[number].sequence

    def _was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger that was just found unknown was certainly deleted here and not stored again since."""
        return self._ledgers.was_deleted(ledger_id) and not self._ledgers.untrusted

    def _home(self, number: int, sequence: int, ledger_id: int) -> int:
        """The shard of a ledger that was just found unknown.

        Usually that of its id. But if that shard's mark is past the record, the ledger was in another shard, or was
        deleted: it goes to a rebuilt index, which keeps doubtful ledgers.
        """
        home = ledger_id % len(self._ledgers.shards)
        if self._rebuilt and sequence < self._ledgers.shards[home].row.marks[number].sequence:
            return min(self._rebuilt)
        return home


def _cut_short(directory: str, end: Mark, furthest: Mark) -> Damage:
    """Frames are gone that a checkpoint of one ledger directory has seen, and that another one needs."""
    lost = (
        f"commit frames {end.sequence} to {furthest.sequence - 1} of the journal are gone: a checkpoint had seen them"
    )
    return Damage(f"{directory}/{file_name(end.file_id)}", end.offset, lost, frozenset())
