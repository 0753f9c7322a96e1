import asyncio
import os

import bkpy


async def main() -> None:
    async with bkpy.connect(os.environ["BKPY_CONNECT"]) as client:
        async with await client.create_ledger() as writer:
            entry_id = await writer.append(b"hello")  # on two disks of three when this returns
            ids = await writer.append_batch([b"a", b"b", b"c"])
            print(f"ledger {writer.ledger_id}: entries {entry_id} and {list(ids)}")

        reader = await client.open_ledger(writer.ledger_id)
        async for entry in reader.read():
            print(entry.entry_id, entry.data)


asyncio.run(main())
