"""What the writers of one log have done, and whether the log is what it has to be after that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.hooks import roller_of
from tests.in_process import DEADLINE_S

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from bkpy.log.writer import LogWriter


@dataclass
class Tale:
    """One writer's: what it appended in this order, and the positions of what was acknowledged."""

    name: str
    appended: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    unsent: set[bytes] = field(default_factory=set)  # that is certain, as it was told
    failure: BookKeeperError | None = None

    async def append(self, log: LogWriter, count: int) -> None:
        for _ in range(count):
            data = f"{self.name}-{len(self.appended)}".encode()
            self.appended.append(data)
            try:
                self.acknowledged[data] = await log.append(data)
            except BookKeeperError as error:
                if not error.outcome_unknown:
                    self.unsent.add(data)
                raise

    async def roll(self, log: LogWriter, patience_s: float = DEADLINE_S) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await roller_of(log).roll()
        except TimeoutError:
            return  # the former ledger can't be closed
        except BookKeeperError as error:  # it goes on as before, or has failed, as the next append will tell
            self.failure = error


def check(tales: list[Tale], found: list[bytes]) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and of each writer a prefix is there, in its order."""
    assert len(set(found)) == len(found), "an entry is there twice"
    for tale in tales:
        for data, position in tale.acknowledged.items():
            assert found[position : position + 1] == [data], f"{data!r} was acknowledged at {position}"
        survived = [data for data in found if data.rpartition(b"-")[0].decode() == tale.name]
        assert survived == tale.appended[: len(survived)], f"what survives of {tale.name} is no prefix"
        assert not tale.unsent & set(survived), "an append that was certainly not made is there"
    assert set(found) <= {data for tale in tales for data in tale.appended}
