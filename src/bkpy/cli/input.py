"""What commands read: lines from a file or standard input, and answers to questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

import click

from bkpy.errors import FrameTooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

STANDARD_INPUT = 0
_CHUNK_BYTES = 1 << 18
_CHUNKS_WAITING_MAX = 4


# --- lines ------------------------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """The pieces of an input, and how many bytes it has, if that is known."""

    chunks: AsyncIterator[bytes]
    size: int | None


@contextlib.asynccontextmanager
async def source(path: str) -> AsyncIterator[Input]:
    """The file, or standard input for `-`, read without blocking the event loop. `OSError` if there is none."""
    where = STANDARD_INPUT if path == "-" else path
    status = os.stat(where)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        yield Input(_from_thread(where), None)
        return
    import aiofiles

    async with aiofiles.open(where, "rb", buffering=0, closefd=where != STANDARD_INPUT) as file:
        yield Input(_pieces(file.read), status.st_size - await file.tell())


async def _pieces(read: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    while chunk := await read(_CHUNK_BYTES):
        yield chunk


async def _from_thread(where: int | str) -> AsyncGenerator[bytes, None]:
    """From a terminal or a pipe, which may be silent for hours.

    The thread that waits for it is a daemon, because nothing can wake it when the program ends.
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
                    fd = (
                        where if isinstance(where, int) else os.open(where, os.O_RDONLY)
                    )  # blocks until a pipe has a writer
                chunk = os.read(fd, _CHUNK_BYTES)
            except OSError as e:
                chunk = e
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                return

    threading.Thread(target=read, name="bkpy-input", daemon=True).start()
    while item := await arrived.get():
        if isinstance(item, OSError):
            raise item
        room.release()
        yield item


async def lines_of(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The lines in the pieces, without their line breaks, as many at a time as have arrived.

    Raises `FrameTooLargeError`, with the line's number, for a line of more than `bytes_max` bytes.
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


# --- questions --------------------------------------------------------------------------------------------------------


def confirm(question: str, nothing: str = "nothing was deleted") -> None:
    """Return if the answer, from standard input, is yes; else end the command with the text `nothing`."""
    if _answer(f"{question} [y/N]", nothing).lower() not in ("y", "yes"):
        raise click.ClickException(nothing)


def confirm_by_typing(question: str, expected: str, nothing: str) -> None:
    """Return if the answer, from standard input, is `expected`; else end the command with the text `nothing`."""
    if _answer(question, nothing) != expected:
        raise click.ClickException(nothing)


async def confirm_meanwhile(question: str, nothing: str = "nothing was deleted") -> None:
    """As `confirm`, within an event loop: that goes on, which keeps sessions alive, and a signal ends the waiting."""
    asked = _ask(f"{question} [y/N]")
    answer = b""
    async with contextlib.aclosing(_from_thread(STANDARD_INPUT)) as chunks:
        async for chunk in chunks:
            answer += chunk
            if b"\n" in chunk or len(answer) > _CHUNK_BYTES:
                break
    if _answered(answer.decode(errors="replace"), nothing, asked=asked).lower() not in ("y", "yes"):
        raise click.ClickException(nothing)


def _answer(question: str, nothing: str) -> str:
    asked = _ask(question)
    return _answered(sys.stdin.readline(), nothing, asked=asked)


def _ask(question: str) -> bool:
    """Whether there is anybody who sees the question."""
    asked = sys.stdin.isatty() or sys.stderr.isatty()
    if asked:
        click.echo(f"{question} ", nl=False, err=True)
    return asked


def _answered(answer: str, nothing: str, *, asked: bool) -> str:
    if asked and not (answer and sys.stdin.isatty()):  # no terminal has broken the line
        click.echo(err=True)
    if not answer and not sys.stdin.isatty():
        raise click.UsageError(f"{nothing}: there is nobody to ask; --yes goes on without a question")
    return answer.strip()
