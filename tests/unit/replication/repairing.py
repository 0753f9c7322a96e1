"""Under-replicated ledgers in one process, and what is needed to work them off by hand."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

from tests.hooks import cluster_of, pool_of

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.replication.worker.fragment_copy import CopyCount, FragmentCopy
from bkpy.replication.worker.ledger_repair import LedgerRepair
from bkpy.replication.worker.pacing import CopyRate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pytest
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.replication.worker.ledger_repair import Repaired


class Repairs:
    """What one client does to ledgers, by hand."""

    def __init__(self, client: Client, *, target: str | None = None, **settings: Any) -> None:
        cluster = cluster_of(client)
        self.client = client
        self.count = CopyCount()
        self.settings = RecoverySettings(**settings)
        self.locks = LedgerLocks(cluster.store, cluster.root, "by hand", cluster.store.runtime)
        self.left: frozenset[str] = frozenset()
        rate = CopyRate(self.settings, cluster.store.runtime)
        self.repair = LedgerRepair(
            replication_context(client), self.locks, self.settings, rate, self.count, target=target
        )

    async def run(self, ledger_id: int, leaving: Collection[str], *, grace_over: bool = False) -> Repaired:
        scope = RepairScope(frozenset(leaving), waited_for=frozenset(leaving if grace_over else ()))
        ended = await self.repair.run(ledger_id, scope)
        self.left = ended.left
        return ended


@contextlib.contextmanager
def hanging_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """While this lasts, who copies a fragment hangs until cancelled. The event is set when somebody does."""
    hangs = asyncio.Event()

    async def hang(copy: FragmentCopy) -> Any:
        hangs.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(FragmentCopy, "run", hang)
        yield hangs


def locked(cluster: InProcess) -> list[int]:
    """The ledgers whose re-replication lock is held."""
    found = (re.search(r"/locks/L([0-9]{19})$", path) for path in cluster.tree.paths)
    return sorted(int(match[1]) for match in found if match)


async def held(client: Client, ledger_id: int, bookie_id: str, last: int) -> dict[int, bytes]:
    """The verified records that the bookie itself returns, up to entry `last`."""
    codec = RecordCodec(ledger_id)
    found: dict[int, bytes] = {}
    first = 0
    while first <= last:
        head = m.pack([0, ledger_id, first, last, 1 << 20])
        frame = await pool_of(client).channel(bookie_id).call(Op.READ, head, timeout_s=10.0, again=True)
        assert m.reply_status(frame.head) == Status.OK
        for header in walk(frame.body):
            codec.check(frame.body, header.offset, header.end)
            found[header.entry_id] = bytes(frame.body[header.offset : header.end])
        first = m.decode_read_reply(frame.head).examined_to + 1
    return found


async def whole(client: Client, ledger_id: int) -> LedgerMetadata:
    """The metadata of a closed ledger, each of whose bookies has all that it is named for, as the others have it."""
    metadata = await client.ledger_metadata(ledger_id)
    records: dict[int, bytes] = {}
    ends = [*(fragment.first_entry - 1 for fragment in metadata.fragments[1:]), metadata.last_entry]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        for place, name in enumerate(fragment.bookies):
            wanted = {
                n
                for n in range(fragment.first_entry, end + 1)
                if place in write_set(n, metadata.ensemble_size, metadata.write_quorum)
            }
            copies = await held(client, ledger_id, name, metadata.last_entry)
            assert wanted <= copies.keys(), f"{name} lacks {sorted(wanted - copies.keys())}"
            for entry_id in wanted:
                assert records.setdefault(entry_id, copies[entry_id]) == copies[entry_id]
    assert records.keys() == set(range(metadata.last_entry + 1))
    return metadata
