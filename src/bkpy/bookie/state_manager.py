"""Whether a bookie takes new entries: the reasons why it doesn't, its service, and its registration.

Invariants: while there is a reason, the service refuses new entries, from the call on that adds it; the service takes
them again only after the registration has moved back to the writable bookies. A read-only bookie still stores what
recoveries write back, fences and answers reads; a draining or decommissioned one refuses recoveries, too.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from bkpy.protocol.repair.draining import Tenure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.bookie.service import BookieService
    from bkpy.metadata.bookies.registration import Registration
    from bkpy.storage.space.disk_monitor import DiskMonitor

log = logging.getLogger("bkpy.bookie")

_FREE_CHANGE_MIN: Final = 0.05  # part of the free space that has to change before the registration does


class ReadOnlyReason(StrEnum):
    """Why a bookie takes no new entries. The registration has these texts."""

    DISK_LOW = "too little disk space"
    UNTRUSTED = "data was lost here"
    DRAINING = "draining"
    DECOMMISSIONED = "decommissioned"


class ReadOnlyReasons:
    """The reasons of one bookie; `str` of it joins them. Adding one makes `service` refuse new entries at once."""

    def __init__(self, service: BookieService) -> None:
        self._service = service
        self._reasons: set[str] = set()

    def add(self, reason: str) -> None:
        if reason not in self._reasons:
            log.warning("bookie %s is read-only: %s", self._service.bookie_id, reason)
        self._reasons.add(reason)
        self._service.refuse_entries()

    def discard(self, reason: str) -> None:
        """Withdraw the reason. The service takes entries again when `StateManager` says so."""
        self._reasons.discard(reason)

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __str__(self) -> str:
        return ", ".join(sorted(self._reasons))


class StateManager:
    """Moves a registered bookie between writable and read-only.

    `trusted` is to be set once the bookie knows, ledger by ledger, what it has lost. `stop_replication` ends the
    auditor and the worker that run in the bookie's process.
    """

    def __init__(
        self,
        service: BookieService,
        reasons: ReadOnlyReasons,
        registration: Registration,
        disk: DiskMonitor,
        stop_replication: Callable[[], Awaitable[None]],
    ) -> None:
        self.trusted = asyncio.Event()
        self._service = service
        self._reasons = reasons
        self._registration = registration
        self._disk = disk
        self._stop_replication = stop_replication
        self._disk_checked = asyncio.Event()
        self._moving = asyncio.Lock()

    async def set_read_only(self, read_only: bool, reason: str) -> None:
        """Add the reason, or withdraw it: the bookie is read-only while there is any.

        The service refuses entries from this call on. The registration moves before the call returns, and before the
        service takes entries again. While the metadata store is away, the call waits for it.
        """
        if read_only:
            self._reasons.add(reason)
        else:
            self._reasons.discard(reason)
        async with self._moving:
            wanted = bool(self._reasons)
            await self._registration.set_read_only(wanted, str(self._reasons))
            if not wanted and not self._reasons and self._service.read_only:
                self._service.take_entries()
                log.info("bookie %s is writable again", self._service.bookie_id)

    async def follow_tenure(self, tenure: Tenure) -> None:
        """Take entries, or refuse all of them, those of recoveries too; return when the registration says so."""
        if tenure is Tenure.TAKES:
            self._service.stay()
            self._reasons.discard(ReadOnlyReason.DRAINING)
            await self.set_read_only(False, ReadOnlyReason.DECOMMISSIONED)
            return
        draining = tenure is Tenure.LEAVES
        reason = ReadOnlyReason.DRAINING if draining else ReadOnlyReason.DECOMMISSIONED
        self._reasons.add(reason)
        self._service.leave()
        if tenure is Tenure.GONE:
            # A process outside the cluster is no candidate for auditor, and copies nothing.
            await self._stop_replication()
        self._reasons.discard(ReadOnlyReason.DECOMMISSIONED if draining else ReadOnlyReason.DRAINING)
        await self.set_read_only(True, reason)

    def disk_checked(self) -> None:
        """Refuse entries at once if a disk is low. Its registration may take as long as the metadata store is away."""
        if self._disk.low:
            self._reasons.add(ReadOnlyReason.DISK_LOW)
        self._disk_checked.set()

    async def follow_disk(self) -> None:
        """After each check of the disks, register what it has found."""
        while True:
            await self._disk_checked.wait()
            self._disk_checked.clear()
            await self.set_read_only(self._disk.low, ReadOnlyReason.DISK_LOW)
            registered = self._registration.info.free_bytes
            if abs(self._disk.free_bytes - registered) > _FREE_CHANGE_MIN * registered:
                await self._registration.set_free_bytes(self._disk.free_bytes)

    async def follow_trust(self) -> None:
        """Once the bookie knows what it has lost, let it store ledgers that it has never seen."""
        await self.trusted.wait()
        await self._registration.set_in_limbo(in_limbo=False)
        await self.set_read_only(False, ReadOnlyReason.UNTRUSTED)
