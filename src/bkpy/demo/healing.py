"""The part of the demonstration that heals: the cluster re-replicates the killed bookie's ledgers; all copies are read.

Invariant: a flight counts as being on a bookie only if that bookie itself returned it, as it is in the source.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import bkpy
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, BookKeeperError
from bkpy.protocol.repair.holdings import holdings
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bkpy.demo.flights import Advance, Month, Written

# Settings of the demonstration's bookies, so that nobody has to wait for minutes.
HEALS_SOON: Final[Mapping[str, Any]] = {
    "lost_bookie_recovery_delay_s": 2.0,
    "lost_bookie_settle_s": 1.0,
    "session_timeout_s": 4.0,
}
DEFAULT_DELAY_S: Final = RecoverySettings().lost_bookie_recovery_delay_s

_LOOK_INTERVAL_S = 0.1
_HEAL_TIMEOUT_S = 120.0  # it takes seconds
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class HealingSample:
    """The state of re-replication some seconds after the kill. `ledgers` counts ledgers that still name it."""

    seconds: float
    ledgers: int
    bytes_left: int | None  # None before the ledgers are marked
    state: str


@dataclass
class Copies:
    """How many flights are on how many bookies that run, as these bookies returned them."""

    flights: Counter[int] = field(default_factory=Counter)  # by the number of bookies
    bookies: set[str] = field(default_factory=set)
    seconds: float = 0.0


async def follow(uri: str, written: Written, tell: Callable[[HealingSample], None]) -> None:
    """Sample the ledgers until none names the killed bookie any more. `tell` is called with each sample.

    The first sample is of the moment of the kill.
    """
    killed_at = written.pauses.killed_at
    assert killed_at is not None
    tell(HealingSample(0.0, written.named_killed, None, "it is killed"))
    async with bkpy.connect(uri) as client:
        while True:
            look = await _look(client, written, killed_at)
            tell(look)
            if not look.ledgers:
                return
            if look.seconds > _HEAL_TIMEOUT_S:
                raise BookKeeperError(f"{look.ledgers} ledgers are still under-replicated: {look.state}")
            await asyncio.sleep(_LOOK_INTERVAL_S)


async def _look(client: bkpy.Client, written: Written, killed_at: float) -> HealingSample:
    found = await bkpy.AdminClient(client).replication_status()
    naming = 0
    for month in written.months:
        metadata = await client.ledger_metadata(month.ledger_id)
        naming += any(written.killed in fragment.bookies for fragment in metadata.fragments)
    absence = found["absent"].get(written.killed)
    bytes_left = found["bytes_left"] if found["ledgers"] else None
    if not naming:
        state = "all copies are there again"
        bytes_left = 0
    elif absence is None:
        state = "its session has not ended yet"
    elif found["ledgers"] or absence["lost"]:
        state = "it is lost: others re-replicate its ledgers"
    else:
        state = "it is absent, perhaps for a moment"
    return HealingSample(time.monotonic() - killed_at, naming, bytes_left, state)


async def count_copies(
    uri: str, months: Sequence[Month], lines: Mapping[int, Sequence[bytes]], advance: Advance
) -> Copies:
    """Read every ledger from each bookie that its metadata name, and compare with the source."""
    copies = Copies()
    started = time.monotonic()
    async with bkpy.connect(uri) as client:
        for month in months:
            metadata = await client.ledger_metadata(month.ledger_id)
            source = lines[month.month]
            found = bytearray(len(source))  # for each flight, on how many bookies it is
            for held in holdings(metadata):
                assert held.last_entry is not None  # the ledger is closed
                for share in held.shares:
                    copies.bookies.add(share.bookie_id)
                    following = held.first_entry
                    while following <= held.last_entry:
                        some = await _read(client, month.ledger_id, share.bookie_id, following, held.last_entry)
                        if not some:
                            break
                        for entry_id, line in enumerate(some, following):
                            found[entry_id] += line == source[entry_id]
                        following += len(some)
                        advance(len(some))
            copies.flights.update(found)
    copies.seconds = time.monotonic() - started
    return copies


async def _read(client: bkpy.Client, ledger_id: int, bookie_id: str, first: int, last: int) -> list[bytes]:
    """The entries that this bookie returns from `first` on, with checksums verified; none if it doesn't hold that."""
    parts = replication_context(client).parts
    head = m.pack([0, ledger_id, first, last, _READ_BYTES])
    try:
        frame = await parts.pool.channel(bookie_id).call(Op.READ, head, timeout_s=parts.settings.read_timeout_s)
    except BookieUnavailableError:
        return []
    if m.reply_status(frame.head) != Status.OK:
        return []
    starts, ends = array("q"), array("q")
    RecordCodec(ledger_id).scan(frame.body, first, last, starts, ends)
    return [bytes(frame.body[start:end]) for start, end in zip(starts, ends, strict=True)]
