"""One run of chaos: a cluster, processes that write and read, faults, healing, and the account of every entry.

Faults of a lane come one after the other, beside those of other lanes. Invariant: whatever ends a run, its processes
end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from operator import not_
from typing import TYPE_CHECKING

import bkpy
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from tests.faults.oracle import BrokenPromiseError, Promises, check, check_replicas
from tests.waiting import eventually

from .clients import (
    CONSUMER,
    ClientProcess,
    acknowledged_files,
    consume_some,
    consumed_file,
    promise_files,
    violations,
)
from .oracle import Known, Read, Record, account, consumed, streamed
from .schedule import LANES, LOGS, STREAMED, Fault, draw
from .stage import SKIPPED, Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from .stream import Stream

HEALED_S = 300.0
CALM_S = 60.0  # for the cluster to be sound before a bookie loses its disks
ENDED_S = 120.0  # for the stream to read the rest


class Turns:
    """Most faults share the time, and one that needs a calm has it alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._sharing = 0
        self._calm = False

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._calm)
            self._sharing += 1
        try:
            yield
        finally:
            async with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._calm)
            self._calm = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._sharing)
            yield
        finally:
            async with self._changed:
                self._calm = False
                self._changed.notify_all()


class ChaosError(AssertionError):
    """An entry is not where it was acknowledged, or the cluster has not healed."""


class Chaos:
    """`await run()` raises `ChaosError` if anything is wrong. Without `streaming` no Spark is needed."""

    def __init__(self, directory: Path, seed: int, length_s: float, *, streaming: bool) -> None:
        self.faults: Counter[str] = Counter()
        self.compared = self.acknowledged = 0
        self._directory = directory
        self._seed, self._length_s = seed, length_s
        self._stage = Stage(directory)
        self._turns = Turns()
        uri = self._stage.uri
        self._writers = {log: ClientProcess("write", uri, directory, log, seed) for log in LOGS}
        self._rivals = {log: ClientProcess("write", uri, directory, log, seed + 1, name="rival") for log in LOGS}
        self._consumers = {log: ClientProcess("consume", uri, directory, log, seed) for log in LOGS}
        self._ledgers = ClientProcess("ledgers", uri, directory, "all", seed)
        self._stream = _stream(uri, directory) if streaming else None
        self._truncated = dict.fromkeys(LOGS, 0)  # the last position before which somebody has truncated

    async def run(self) -> None:
        schedule = draw(self._seed, self._length_s)
        print("\n".join(map(str, schedule)), flush=True)
        try:
            await self._stage.start()
            async with bkpy.connect(self._stage.direct_uri) as client:
                await self._storm(schedule, client)
                await self._healed(client)
                await self._compare(client)
        finally:
            await self._end_clients()
            await self._stage.kill()

    # --- the storm ----------------------------------------------------------------------------------------------------

    async def _storm(self, schedule: list[Fault], client: bkpy.Client) -> None:
        clients = (*self._writers.values(), *self._consumers.values(), self._ledgers)
        for one in clients:
            one.start()
        async with asyncio.TaskGroup() as group:
            lanes = [
                group.create_task(self._lane([fault for fault in schedule if fault.lane == lane], client))
                for lane in (*LANES, "upgrades")
            ]
            following = [group.create_task(self._progress())]
            if self._stream is not None:
                following.append(group.create_task(self._stream.run()))
            await asyncio.sleep(self._length_s)
            await asyncio.wait(lanes)  # a fault of the last moment may keep a process away
            for one in clients:
                one.must_run()
            for task in following:
                task.cancel()

    async def _lane(self, faults: list[Fault], client: bkpy.Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        calm_s = 0.0
        for fault in faults:
            if fault.at_s + calm_s >= self._length_s:
                return  # what the waits have put off beyond the end
            await asyncio.sleep(max(0.0, began + fault.at_s + calm_s - loop.time()))
            waits = loop.time()
            async with self._turns.alone() if fault.kind == "disk lost" else self._turns.shared():
                calm_s += loop.time() - waits
                if loop.time() < began + self._length_s:  # a bookie takes its time to start, the more the busier all is
                    self.faults[await self._apply(fault, client)] += 1

    async def _apply(self, fault: Fault, client: bkpy.Client) -> str:
        match fault.kind:
            case "writer killed":
                await self._restart(self._writers[fault.target], fault)
            case "writer suspended":
                process = self._writers[fault.target].process
                process.suspend()
                await asyncio.sleep(fault.lasts_s)
                process.resume()
            case "rival":
                rival = self._rivals[fault.target]
                rival.start()
                await asyncio.sleep(fault.lasts_s)
                rival.must_run()
                await rival.kill()
            case "consumer killed":
                await self._restart(self._consumers[fault.target], fault)
            case "ledger writer killed":
                await self._restart(self._ledgers, fault)
            case "stream killed":
                if self._stream is None:
                    return SKIPPED
                await asyncio.to_thread(self._stream.kill)
            case "drain":
                return await self._drain(fault, bkpy.AdminClient(client))
            case "truncation":
                return await self._truncate(fault, bkpy.AdminClient(client))
            case "disk lost":
                return await self._lose_disk(fault, client)
            case _:
                return await self._stage.apply(fault)
        return fault.kind

    @staticmethod
    async def _restart(one: ClientProcess, fault: Fault) -> None:
        one.must_run()
        await one.kill()
        await asyncio.sleep(fault.lasts_s)
        one.start()

    async def _drain(self, fault: Fault, admin: bkpy.AdminClient) -> str:
        """A bookie drains for a while, and then shall stay after all."""
        try:
            await admin.start_drain(fault.target)
        except bkpy.BookKeeperError:
            return "drain, refused"
        await asyncio.sleep(fault.lasts_s)
        await eventually(
            lambda: _cancelled(admin, fault.target), "a drain is cancelled", meanwhile=bkpy.BookKeeperError
        )
        return fault.kind

    async def _truncate(self, fault: Fault, admin: bkpy.AdminClient) -> str:
        """All that the log's consumer has committed goes."""
        log = fault.target
        try:
            before = (await admin.log_consumers(log))[CONSUMER].position
            self._truncated[log] = max(self._truncated[log], before)
            await admin.truncate_log(log, before)
        except (bkpy.BookKeeperError, KeyError):  # there is no such log or consumer yet, or not all bookies answer
            return "truncation, refused"
        return fault.kind

    async def _lose_disk(self, fault: Fault, client: bkpy.Client) -> str:
        """A bookie loses its disks once every other one is sound."""

        async def sound() -> bool:
            for ledger_id in await self._stage.recorded():
                await _recover(client, ledger_id)  # else its record waits for whoever closes it
            return not await self._stage.unsound()

        with contextlib.suppress(AssertionError):
            await eventually(sound, "calm", deadline_s=CALM_S, pause_s=0.5, meanwhile=bkpy.BookKeeperError)
        return await self._stage.apply(fault)

    async def _progress(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            terms = [path for log in LOGS for path in acknowledged_files(self._directory, log)]
            print(
                f"\r{loop.time() - began:6.0f} s  {self.faults.total()} faults  {_lines(terms)} acknowledged  "
                f"{_lines([consumed_file(self._directory, log) for log in LOGS])} consumed  {len(terms)} terms  "
                f"{len(promise_files(self._directory))} ledgers",
                end="" if sys.stdout.isatty() else "\n",
                flush=True,
            )
            await asyncio.sleep(1.0 if sys.stdout.isatty() else 15.0)

    async def _end_clients(self) -> None:
        if self._stream is not None:
            await asyncio.to_thread(self._stream.kill)
        clients = (*self._writers.values(), *self._rivals.values(), *self._consumers.values(), self._ledgers)
        await asyncio.gather(*(one.kill() for one in clients))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _healed(self, client: bkpy.Client) -> None:
        """The writers end, as killed processes do. Return when every bookie takes entries and no record is left.

        A record of an open ledger whose bookies are back waits for who closes the ledger: here nobody else does.
        """
        await asyncio.gather(*(one.kill() for one in (*self._writers.values(), *self._consumers.values())))
        await self._ledgers.kill()
        await self._stage.heal()
        try:
            await eventually(
                lambda: _recover_all(client),
                "every ledger is closed",
                deadline_s=HEALED_S,
                pause_s=0.5,
                meanwhile=bkpy.BookKeeperError,
            )
            await eventually(self._stage.unsound, "the cluster heals", until=not_, deadline_s=HEALED_S, pause_s=0.5)
        except AssertionError as error:
            raise ChaosError(str(error)) from None

    async def _compare(self, client: bkpy.Client) -> None:
        wrong = violations(self._directory)
        acknowledged = {
            log: [known for path in acknowledged_files(self._directory, log) for known in Record.load(path)]
            for log in LOGS
        }
        for log in LOGS:
            wrong += [f"{log}: {what}" for what in await self._log(client, log, acknowledged[log])]
        ledgers = promise_files(self._directory)
        for path in ledgers:
            promises = Promises.load(path)
            await (await client.recover_ledger(promises.ledger_id)).close()
            try:
                await check(client, promises)
            except BrokenPromiseError as error:
                wrong.append(str(error))
        async for ledger_id in client.list_ledgers():
            try:
                await check_replicas(client, ledger_id)
            except BrokenPromiseError as error:
                wrong.append(str(error))
        if wrong:
            raise ChaosError("\n".join(wrong))
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        terms = sum(len(acknowledged_files(self._directory, log)) for log in LOGS)
        print(
            f"\n{self.compared} entries compared, {self.acknowledged} of them acknowledged, by "
            f"{terms} terms of writers; {len(ledgers)} ledgers; nothing is wrong. {done}"
        )

    async def _log(self, client: bkpy.Client, log: str, acknowledged: list[Known]) -> list[str]:
        async with await client.open_log(log):
            pass  # it finds out where the log ends, and closes it there
        async with await client.read_log(log) as reader:
            first = reader.first_position
            found = [Read(e.position, e.data) async for e in reader.read(first, reader.next_position - 1)]
        record = Record(consumed_file(self._directory, log))
        with contextlib.closing(record):
            await consume_some(client, log, record, until_the_end=True)
        self.compared += len(found)
        self.acknowledged += sum(position >= first for position, _ in acknowledged)
        wrong = account(log, acknowledged, found, first)
        wrong += consumed(found, Record.load(record.path), acknowledged)
        if first > self._truncated[log]:
            wrong.append(f"begins at {first}, and was truncated before {self._truncated[log]}")
        if self._stream is not None and log == STREAMED:
            async with asyncio.timeout(ENDED_S):
                while await self._stream.finish():
                    continue  # the present driver may have met the last of the faults
            wrong += streamed(found, await asyncio.to_thread(self._stream.rows))
        return wrong


async def _recover_all(client: bkpy.Client) -> bool:
    """Recover each ledger that its writer has left open. Raises what that raises."""
    async for ledger_id in client.list_ledgers():
        await _recover(client, ledger_id)
    return True


async def _recover(client: bkpy.Client, ledger_id: int) -> None:
    if (await client.ledger_metadata(ledger_id)).state is not LedgerState.CLOSED:
        await (await client.recover_ledger(ledger_id)).close()


def _stream(uri: str, directory: Path) -> Stream:
    from .stream import Stream  # Spark, which a run without a stream does without

    return Stream(uri, STREAMED, directory)


async def _cancelled(admin: bkpy.AdminClient, bookie_id: str) -> bool:
    await admin.cancel_drain(bookie_id)
    return True


def _lines(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths if path.exists())
