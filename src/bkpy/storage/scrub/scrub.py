"""The scrub of a bookie: one scrubber for each ledger directory, and their findings together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from bkpy.storage.scrub.scrubber import Scrubber, ScrubStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard
    from bkpy.storage.tools.check.defects import Defect


class Damages(NamedTuple):
    """The damages of a bookie, each with its ledger and the entries from `first` to `last` that it may concern.

    `last` is None where all entries of the ledger may be concerned. `left_out`: how many more there are.
    """

    found: list[Defect]
    left_out: int


class Scrub:
    """The scrub of all ledger directories. Its methods run on the event loop; the constructor blocks."""

    def __init__(
        self, shards: Iterable[Shard], runtime: DiskRuntime, settings: BookieSettings, observer: StorageObserver
    ) -> None:
        self._scrubbers = [Scrubber(shard, runtime, settings, observer) for shard in shards]

    def start(self) -> None:
        """Resume interrupted rounds, and begin later ones when they are due."""
        for scrubber in self._scrubbers:
            scrubber.start()

    def settings_changed(self) -> None:
        """Settings were reloaded: rounds are due by the interval that there is now."""
        for scrubber in self._scrubbers:
            scrubber.settings_changed()

    def begin(self) -> bool:
        """Begin a round in each directory in which none is under way; False if one is under way in all."""
        begun = [scrubber.begin() for scrubber in self._scrubbers]
        return any(begun)

    @property
    def statuses(self) -> list[ScrubStatus]:
        """Of each directory, in their order."""
        return [scrubber.status for scrubber in self._scrubbers]

    async def damages(self) -> Damages:
        """The known damages, without entries that were deleted or replaced since."""
        for scrubber in self._scrubbers:
            await scrubber.look_again()
        lists = [scrubber.damages for scrubber in self._scrubbers]
        return Damages([defect for one in lists for defect in one.defects], sum(one.left_out for one in lists))

    @property
    def damage_count(self) -> int:
        """How many damages are known, including damages beyond the lists' bound."""
        return sum(len(scrubber.damages.known) + scrubber.damages.left_out for scrubber in self._scrubbers)

    @property
    def progress(self) -> float:
        """The share of their bytes that the rounds under way have read; 1 if there are none."""
        running = [status for status in self.statuses if status.running]
        total = sum(status.total_bytes for status in running)
        return sum(status.done_bytes for status in running) / total if total else float(not running)

    @property
    def last_round_ended_s(self) -> float | None:
        """The earliest of all directories' last rounds' ends, in seconds since 1970; None if one never ended."""
        ends = [status.ended_s for status in self.statuses]
        return None if None in ends else min(end for end in ends if end is not None)

    async def stop(self) -> None:
        """End within a step, and store the progress."""
        await asyncio.gather(*(scrubber.stop() for scrubber in self._scrubbers))

    def close(self) -> None:
        """End the threads. Blocks until they have finished their work."""
        for scrubber in self._scrubbers:
            scrubber.close()
