"""`bkpy bookie rebuild-index` with the metadata of a real ZooKeeper, on a bookie whose index can't be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_without_journal import asked
from tests.command import bkpy as command
from tests.compat import raw

import bkpy
from bkpy.local import LocalCluster
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
PAYLOADS = [b"%d" % i * 100 for i in range(60)]
ALL, HELD = set(range(100)), set(range(60))


@pytest.mark.exhaustive
@pytest.mark.scenario(52)
async def test_a_bookie_whose_index_cannot_be_read_denies_nothing_afterwards(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, bookies=2) as cluster:
        bookie, other = cluster.bookies
        async with bkpy.connect(cluster.connect_string) as client:
            closed = await client.create_ledger(**SIZES)
            await closed.append_batch(PAYLOADS)
            await closed.close()
            unfinished = await client.create_ledger(**SIZES)
            await unfinished.append_batch(PAYLOADS[:30])
            await bookie.stop()  # what is acknowledged until here is in entry logs
            await bookie.start()
            await unfinished.append_batch(PAYLOADS[30:])
            await bookie.kill()  # and this in the journal
            # Never on this bookie; an id that the new index can't know of.
            elsewhere = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await elsewhere.append(b"x")
            assert elsewhere.metadata.fragments[0].bookies == (other.id,)

            for path in (bookie.directory / "ledgers" / "index").iterdir():
                path.write_bytes(b"\xaa" * 65536)
            with pytest.raises(bkpy.BookieUnavailableError, match="rebuild-index"):
                await bookie.start()
            words = ("bookie", "rebuild-index", "--config", bookie.config_path, "--yes", "--json")
            found = json.loads(command(*words).stdout)
            assert (found["ledgers"], found["limbo"], found["keyless"], found["unknown"]) == (2, 1, 0, 0)
            assert (found["damages"], found["trusted"]) == ([], True)
            await bookie.start()

            # Closed and all there: it is answered, and what lies behind its end may be denied.
            assert await asked(client, bookie, closed.ledger_id) == (Status.OK, HELD, set())
            # Not closed: nobody may end it by what this bookie lacks.
            assert await asked(client, bookie, unfinished.ledger_id) == (Status.OK, HELD, ALL - HELD)
            # All refuse a zombie. A fence of limbo alone says nothing that would end a writer whom nobody has fenced.
            refusals = [
                await raw.add(bookie.address, ledger_id, 70, b"a zombie's")
                for ledger_id in (closed.ledger_id, unfinished.ledger_id, elsewhere.ledger_id)
            ]
            assert refusals == [raw.FENCED, raw.READ_ONLY, raw.FENCED]

            recovered = await client.recover_ledger(unfinished.ledger_id)
            assert [entry.data async for entry in recovered.read()] == PAYLOADS
            async with await client.create_ledger(**SIZES) as writer:  # with an id that was never fenced
                await writer.append_batch(PAYLOADS)
            assert await asked(client, bookie, writer.ledger_id) == (Status.OK, HELD, set())
            await bookie.stop()
            checked = json.loads(command("bookie", "check", "--config", bookie.config_path, "--json").stdout)
            assert checked["wrong"] == 0
            await elsewhere.close()
