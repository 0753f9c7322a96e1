"""A client of any version, told what to do: one JSON request a line on standard input, one answer a line back.

It is run as a script, with the version to use on PYTHONPATH, and uses nothing that isn't public. Ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import bkpy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Chosen:
    """The ensembles that the requests name."""

    def __init__(self) -> None:
        self.ensemble: tuple[str, ...] = ()

    def choose(self, bookies: Mapping[str, Any], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        missing = set(self.ensemble) - set(bookies)
        if missing or len(self.ensemble) != size:
            raise bkpy.NotEnoughBookiesError(f"{size} bookies are needed, {self.ensemble} chosen, {missing} missing")
        return self.ensemble

    def replace(
        self, bookies: Mapping[str, Any], ensemble: Sequence[str], positions: Collection[int], avoid: Collection[str]
    ) -> tuple[str, ...]:
        spare = sorted(set(bookies) - set(ensemble) - set(avoid))
        if len(spare) < len(positions):
            raise bkpy.NotEnoughBookiesError(f"{spare} for {len(positions)} places")
        return tuple(spare.pop(0) if i in positions else bookie_id for i, bookie_id in enumerate(ensemble))


class RemoteClient:
    """The requests, one method each. Payloads and passwords are texts, of the characters up to 255."""

    def __init__(self, client: bkpy.Client, placement: Chosen) -> None:
        self._client = client
        self._placement = placement
        self._writers: dict[int, bkpy.LedgerWriter] = {}
        self._logs: dict[str, bkpy.LogWriter] = {}

    async def create(self, ensemble: list[str], password: str = "", **options: Any) -> int:
        self._placement.ensemble = tuple(ensemble)
        writer = await self._client.create_ledger(
            ensemble_size=len(ensemble), password=password.encode("latin-1"), **options
        )
        self._writers[writer.ledger_id] = writer
        return writer.ledger_id

    async def append(self, ledger_id: int, entries: list[str], ids: list[int] | None = None) -> int:
        """Returns when all are acknowledged: last add confirmed."""
        writer = self._writers[ledger_id]
        data = [entry.encode("latin-1") for entry in entries]
        if ids is None:
            await writer.append_batch(data)
        else:
            await asyncio.gather(*(writer.append(d, entry_id=i) for i, d in zip(ids, data, strict=True)))
        return writer.last_add_confirmed

    async def force(self, ledger_id: int) -> int:
        return await self._writers[ledger_id].force()

    async def close(self, ledger_id: int) -> None:
        await self._writers.pop(ledger_id).close()

    async def read(self, ledger_id: int, password: str = "") -> list[str]:
        async with await self._client.open_ledger(ledger_id, password=password.encode("latin-1")) as reader:
            return [entry.data.decode("latin-1") async for entry in reader.read()]

    async def tail(self, ledger_id: int, count: int, password: str = "") -> list[str]:
        """The first `count` entries, as soon as they may be read."""
        seen: list[str] = []
        async with await self._client.open_ledger(ledger_id, password=password.encode("latin-1")) as reader:
            async for entry in reader.tail():
                seen.append(entry.data.decode("latin-1"))
                if len(seen) == count:
                    break
        return seen

    async def recover(self, ledger_id: int, password: str = "") -> list[str]:
        async with await self._client.recover_ledger(ledger_id, password=password.encode("latin-1")) as reader:
            return [entry.data.decode("latin-1") async for entry in reader.read()]

    async def state(self, ledger_id: int) -> str:
        return str((await self._client.ledger_metadata(ledger_id)).state)

    async def fragments(self, ledger_id: int) -> list[list[str]]:
        """The bookies of each."""
        return [list(fragment.bookies) for fragment in (await self._client.ledger_metadata(ledger_id)).fragments]

    async def open_log(self, name: str, ensemble: list[str], password: str = "", **options: Any) -> int:
        """Returns the position of the next entry."""
        self._placement.ensemble = tuple(ensemble)
        log = self._logs[name] = await self._client.open_log(
            name, create=True, password=password.encode("latin-1"), ensemble_size=len(ensemble), **options
        )
        return log.next_position

    async def append_to_log(self, name: str, entries: list[str]) -> int:
        """One after the other, each when the one before is acknowledged, so that the log rolls in between."""
        for entry in entries:
            await self._logs[name].append(entry.encode("latin-1"))
            await asyncio.sleep(0.02)
        return self._logs[name].next_position

    async def register_consumer(self, name: str, consumer: str, position: int) -> None:
        await self._logs[name].consumer(consumer, position=position)

    async def truncate_log(self, name: str, before: int) -> None:
        await self._logs[name].truncate(before)

    async def close_log(self, name: str) -> None:
        await self._logs.pop(name).close()

    async def read_log(self, name: str, password: str = "") -> list[str]:
        async with await self._client.read_log(name, password=password.encode("latin-1")) as reader:
            return [entry.data.decode("latin-1") async for entry in reader.read()]

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = getattr(self, request.pop("do"))
        try:
            return {"result": await operation(**request)}
        except bkpy.BookKeeperError as e:
            return {"error": type(e).__name__, "message": str(e)}


async def main(uri: str, settings: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    loop = asyncio.get_running_loop()
    placement = Chosen()
    async with bkpy.connect(uri, placement=placement, **settings) as client:
        remote = RemoteClient(client, placement)
        print(json.dumps({"result": bkpy.__file__}), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await remote.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
