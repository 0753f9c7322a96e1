"""A bookie for BookKeeper's clients through many lives: kills, power cuts, clean stops, tiny bounds.

Clients of both protocols append, overwrite, fence, read and publish while the bookie dies and comes back. Each ledger
has one writer, which does one thing after the other.

The oracle: an entry is read as it was acknowledged last, or as it was sent later; what was acknowledged is never
denied; nothing is acknowledged to a writer after its ledger's fence was; an explicit last add confirmed never falls.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_NAMES, BookKeeperLedgerMetadata
from bkpy.protocol.bookkeeper.statuses import PacketCode, StatusCode, denies_entry
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from tests.in_process import init_bookkeeper
from tests.unit.bookie.bookkeeper.raw import V2, V3, V3_OF_V2, RawBookKeeper

from . import coverage_marks as marks
from .cluster import PORT, ROOT, Bookie
from .world import HostDied, World

if TYPE_CHECKING:
    from collections.abc import Coroutine

LIVES = 4
LEDGERS = 4
PASSWORD = b"secret"
KEY = master_key(PASSWORD)


@dataclass
class Told:
    """What is known of one ledger from outside."""

    ledger_id: int
    codec: EntryCodec
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)  # index into `sent`, and in which life
    next_id: int = 0
    fenced: bool = False  # a client has heard so
    lac: int = -1  # the highest that was acknowledged
    lac_life: int = -1


class BookKeeperRun:
    """One bookie and one host of clients, on one seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.stream("workload")
        self.client_host = self.world.add_host("client")
        self.bookie = Bookie(self.world, "bookie-1", protocol="bookkeeper", gc_interval_s=1.0)
        self.ledgers: list[Told] = []
        self.life = 0

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.world.run(main)

    async def main(self) -> None:
        self.client_host.boot()
        await self.client_host.start(init_bookkeeper(self.client_host.session(), ROOT))
        await self.client_host.start(self._make_ledgers())
        for life in range(LIVES):
            self.life = life
            await self.bookie.start()
            clients = [self.client_host.start(self._use(told, number)) for number, told in enumerate(self.ledgers)]
            await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            await self._end()
            await asyncio.wait(clients)
            for client in clients:
                client.result()
        self.life = LIVES
        await self.bookie.start()
        await self.client_host.start(self._check_all())

    async def _make_ledgers(self) -> None:
        cluster = await open_cluster(self.client_host.session(), ROOT, of_bookkeeper=True)
        for number in range(LEDGERS):
            digest_type = DigestType(1 + number % len(DigestType))

            def build(ledger_id: int, digest_type: DigestType = digest_type) -> BookKeeperLedgerMetadata:
                return BookKeeperLedgerMetadata(
                    ledger_id,
                    LedgerState.OPEN,
                    1,
                    1,
                    1,
                    DIGEST_NAMES[digest_type],
                    KEY,
                    fragments=(Fragment(0, ("bookie-1",)),),
                    owner_token="1",
                    password=PASSWORD,
                )

            created = await cluster.catalog.create(build)
            assert isinstance(created, Created)
            ledger_id = created.metadata.ledger_id
            self.ledgers.append(Told(ledger_id, EntryCodec(ledger_id, digest_type, PASSWORD)))

    async def _end(self) -> None:
        how = self.rng.random()
        if how < 0.4:
            self.bookie.host.crash()
            self.world.marks[marks.BK_KILLED] += 1
        elif how < 0.8:
            self.bookie.host.power_cut()
            self.world.marks[marks.BK_POWER_CUT] += 1
        else:
            await self.bookie.stop()
            self.world.marks[marks.BK_STOPPED] += 1

    # --- clients ----------------------------------------------------------------------------------------------------

    async def _connect(self, speaks: str) -> RawBookKeeper:
        reader, writer = await asyncio.open_connection(self.bookie.host.address, PORT)
        return RawBookKeeper(reader, writer, None, speaks)

    async def _use(self, told: Told, number: int) -> None:
        """One ledger's client, until the bookie is gone."""
        rng = random.Random(f"{self.world.seed}-{number}-{self.life}")
        raw = await self._connect(rng.choice((V2, V3)))
        try:
            while True:
                raw.speaks = rng.choice((V2, V3))
                await self._act(raw, told, rng)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.expovariate(1 / 0.02))
        except (EOFError, ConnectionError, OSError, HostDied):
            raw.close()

    async def _act(self, raw: RawBookKeeper, told: Told, rng: random.Random) -> None:
        act = rng.random()
        if act < 0.45:
            await self._append(raw, told, rng, [told.next_id + i for i in range(rng.choice((1, 1, 5, 20)))])
        elif act < 0.5 and told.sent:
            await self._append(raw, told, rng, [rng.choice([*told.sent])], recovery=True)
        elif act < 0.503:
            found = await raw.read(rng.choice((-1, 0, told.next_id + 5)), fence=True, key=KEY, ledger=told.ledger_id)
            assert found.code in (StatusCode.EOK, StatusCode.ENOENTRY), found
            told.fenced = True
        elif act < 0.6:
            await self._publish(raw, told)
        elif act < 0.7:
            await self._look_at_lac(raw, told)
        elif act < 0.8 and told.sent:
            await self._batch(raw, told, rng.choice([*told.sent]))
        elif told.sent:
            await self._read(raw, told, rng.choice([*told.sent, told.next_id + 100]))

    async def _append(
        self, raw: RawBookKeeper, told: Told, rng: random.Random, ids: list[int], *, recovery: bool = False
    ) -> None:
        was_fenced = told.fenced
        turn = [len(told.sent.setdefault(i, [])) for i in ids]
        for i in ids:
            data = rng.randbytes(rng.choice((0, 10, 100, 2000)))
            told.sent[i].append(told.codec.encode(i, i - 1, rng.randrange(1 << 40), data))
        told.next_id = max(told.next_id, ids[-1] + 1)
        codes = {}
        if raw.speaks == V2:
            flags = p.PacketFlags.RECOVERY if recovery else 0
            raw.send(*(p.encode_add(KEY, told.sent[i][-1], flags) for i in ids))
            for _ in ids:
                reply = await raw.packet()
                codes[reply.entry_id] = V3_OF_V2[PacketCode(reply.code)]
        else:
            sent = {i: raw.message(m.AddEntryRequest(told.ledger_id, i, KEY, told.sent[i][-1], recovery)) for i in ids}
            raw.send(*(frame for _, frame in sent.values()))
            for i, (transaction, _) in sent.items():
                codes[i] = StatusCode((await raw.response(transaction)).status)
        for i, index in zip(ids, turn, strict=True):
            if codes[i] == StatusCode.EOK:
                assert recovery or not was_fenced, f"entry {i} of ledger {told.ledger_id} behind a fence"
                told.acknowledged[i] = (index, self.life)
                self.world.marks[marks.BK_ACKNOWLEDGED] += 1
                self.world.marks[marks.BK_OVERWRITTEN] += index > 0
            else:
                assert codes[i] in (StatusCode.EFENCED, StatusCode.EREADONLY), codes[i]
                self.world.marks[marks.BK_FENCED] += codes[i] == StatusCode.EFENCED

    async def _publish(self, raw: RawBookKeeper, told: Told) -> None:
        confirmed = told.next_id - 1
        body = told.codec.encode_lac(confirmed)
        found = await raw.ask(m.WriteLacRequest(told.ledger_id, confirmed, KEY, body))
        if found.status == StatusCode.EOK and confirmed >= told.lac:
            told.lac, told.lac_life = confirmed, self.life

    async def _look_at_lac(self, raw: RawBookKeeper, told: Told) -> None:
        least, life = told.lac, told.lac_life
        found = await raw.ask(m.ReadLacRequest(told.ledger_id))
        if life >= 0:
            assert found.status == StatusCode.EOK, found
            assert told.codec.decode_lac(found.lac_body) >= least
            self.world.marks[marks.BK_LAC_READ] += life < self.life

    async def _read(self, raw: RawBookKeeper, told: Told, entry_id: int) -> None:
        known = told.acknowledged.get(entry_id)
        found = await raw.read(entry_id, ledger=told.ledger_id)
        self._judge(told, entry_id, known, found.code, found.entry)

    async def _batch(self, raw: RawBookKeeper, told: Told, first: int) -> None:
        known = dict(told.acknowledged)
        raw.send(p.encode_batch_read(told.ledger_id, first, 1, 10, 1 << 20))
        reply = await raw.packet()
        entries = [bytes(entry) for entry in p.batch_entries(reply.body)]
        code = V3_OF_V2[PacketCode(reply.code)]
        self._judge(told, first, known.get(first), code, entries[0] if entries else None)
        for i, entry in enumerate(entries[1:], first + 1):
            self._judge(told, i, known.get(i), StatusCode.EOK, entry)
        self.world.marks[marks.BK_BATCH_READ] += len(entries) > 1

    def _judge(self, told: Told, entry_id: int, known: tuple[int, int] | None, code: int, entry: bytes | None) -> None:
        where = f"entry {entry_id} of ledger {told.ledger_id}, known as {known}"
        if code == StatusCode.EOK:
            least = -1 if known is None else known[0]
            assert entry in told.sent[entry_id][max(0, least) :], f"{where}, came back as another one"
            self.world.marks[marks.BK_READ_BACK] += known is not None and known[1] < self.life
        elif denies_entry(code):
            assert known is None, f"{where}, is denied"
            self.world.marks[marks.BK_DENIED] += 1
        else:
            raise AssertionError(f"{where}, is answered by {code}: nothing was lost here")

    async def _check_all(self) -> None:
        for speaks in (V2, V3):
            raw = await self._connect(speaks)
            for told in self.ledgers:
                for entry_id in [*told.sent, told.next_id]:
                    await self._read(raw, told, entry_id)
                await self._look_at_lac(raw, told)
                if told.fenced:
                    told.sent.setdefault(told.next_id, []).append(told.codec.encode(told.next_id, -1, 0, b""))
                    code = await raw.add(told.next_id, told.sent[told.next_id][-1], ledger=told.ledger_id)
                    assert code == StatusCode.EFENCED, f"ledger {told.ledger_id} was fenced"
            raw.close()


def bookkeeper_run(seed: int) -> tuple[BookKeeperRun, Coroutine[Any, Any, None]]:
    run = BookKeeperRun(seed)
    return run, run.main()
