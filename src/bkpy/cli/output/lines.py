"""Lines from a file or standard input, for a program that must not stand still while it waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from typing import TYPE_CHECKING, NamedTuple

import aiofiles

from bkpy.errors import FrameTooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_STANDARD_INPUT = 0
_CHUNK_BYTES = 1 << 18
_CHUNKS_WAITING_MAX = 4


class Input(NamedTuple):
    """What is read: pieces of it, and how many bytes they will come to, if that is known."""

    chunks: AsyncIterator[bytes]
    size: int | None


@contextlib.asynccontextmanager
async def source(path: str) -> AsyncIterator[Input]:
    """The file, or standard input for `-`. `OSError` if there is none."""
    where = _STANDARD_INPUT if path == "-" else path
    status = os.stat(where)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        yield Input(_from_thread(where), None)
        return
    async with aiofiles.open(where, "rb", buffering=0, closefd=where != _STANDARD_INPUT) as file:
        yield Input(_pieces(file.read), status.st_size - await file.tell())


async def _pieces(read: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    while chunk := await read(_CHUNK_BYTES):
        yield chunk


async def _from_thread(where: int | str) -> AsyncIterator[bytes]:
    """From a terminal or a pipe, which may be silent for hours.

    The thread that waits for it is a daemon, because nothing can wake it when the program wants to end.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_WAITING_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"-"
        fd = None
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                if fd is None:
                    fd = where if isinstance(where, int) else os.open(where, os.O_RDONLY)  # waits for a pipe's writer
                chunk = os.read(fd, _CHUNK_BYTES)
            except OSError as e:
                chunk = e
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    threading.Thread(target=read, name="bkpy-input", daemon=True).start()
    while item := await arrived.get():
        if isinstance(item, OSError):
            raise item
        room.release()
        yield item


async def lines_of(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The lines in the pieces, without their ends, as many at a time as have arrived.

    `FrameTooLargeError` with the line's number for one that is longer than `bytes_max` bytes.
    """
    rest = b""
    count = 0
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for number, line in enumerate([*lines, rest], count + 1):
            if len(line) > bytes_max:
                raise FrameTooLargeError(
                    f"line {number} is longer than {bytes_max} bytes, the most that an entry holds"
                )
        count += len(lines)
        if lines:
            yield lines
    if rest:
        yield [rest]
