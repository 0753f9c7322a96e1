"""The file of a backup (docs/reference/formats/backup.md): compressed lines of JSON, with a checksum at the end.

Invariants: a file of the given name is whole or isn't there; a reader gets nodes only as far as lines are sound, and
learns at the end whether all of them were; neither holds more than a line and a chunk in memory. What blocks runs on a
worker of its own.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.metadata.backup.sealed_lines import SealedLines
from bkpy.runtime.os_errors import naming
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from bkpy.runtime.interfaces import File, Files, Worker

FORMAT: Final = "bkpy metadata backup"
VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20
_LINE_BYTES_MAX: Final = 4 << 20  # a node's value has at most 1 MiB, in base64
_GZIP: Final = 31  # zlib's wbits


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """The first line. `kept_from`: the lowest id whose ledger was perhaps created too late to be in the backup."""

    instance_id: str
    layout: str
    root: str
    time_ms: int
    software: str
    kept_from: int


class BackupEnd(NamedTuple):
    """The last line. `newest_high`: of ids in the long layout, when the backup ended; 0 in others."""

    nodes: int
    ledgers: int
    newest_high: int
    checksum: str  # SHA-256 of all lines before


class BackupNode(NamedTuple):
    """A node: its path below the root, without a slash in front, and its value."""

    path: str
    data: bytes


class BackupWriter:
    """Writes one backup; made by `writing`."""

    def __init__(self, path: str, file: File, worker: Worker) -> None:
        self._path = path
        self._file = file
        self._worker = worker
        self._lines = SealedLines()
        self._offset = 0
        self.nodes = 0

    async def header(self, header: BackupHeader) -> None:
        """The first line."""
        fields = {name: getattr(header, name) for name in BackupHeader.__dataclass_fields__}
        await self._line({"format": FORMAT, "version": VERSION, **fields})

    async def node(self, node: BackupNode) -> None:
        """One node; its parents come first, unless they are empty."""
        self.nodes += 1
        await self._line([node.path, base64.b64encode(node.data).decode()])

    async def end(self, *, ledgers: int, newest_high: int) -> BackupEnd:
        """The last line. Everything is on disk on return."""
        end = BackupEnd(self.nodes, ledgers, newest_high, self._lines.checksum)
        await self._line({"end": end._asdict()})
        await self._write(last=True)
        with naming(self._path):
            await self._worker.run(self._file.fdatasync)
        return end

    async def _line(self, value: Any) -> None:
        self._lines.add(value)
        if self._lines.waiting_bytes >= _CHUNK_BYTES:
            await self._write()

    async def _write(self, *, last: bool = False) -> None:
        pack = self._lines.finish if last else self._lines.take
        with naming(self._path):
            self._offset += await self._worker.run(_write, self._file, pack, self._offset)


def _write(file: File, pack: Callable[[], bytes], offset: int) -> int:
    packed = pack()
    return file.pwritev([packed], offset) if packed else 0


@contextlib.asynccontextmanager
async def writing(files: Files, path: str) -> AsyncIterator[BackupWriter]:
    """A backup that gets its name on leaving without an error; otherwise nothing is left of it.

    The file is readable by this account alone: it has the keys of ledgers. Raises `ConfigError` if there is one, or if
    another process is writing it.
    """
    directory = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    temporary = f"{path}.new"
    with contextlib.closing(files.worker("backup")) as worker, _alone(files, path, temporary):
        file = await worker.run(_emptied, files, temporary)
        try:
            try:
                yield BackupWriter(path, file, worker)
            finally:
                file.close()
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(temporary)
            raise
        await worker.run(files.rename, temporary, path)
        await worker.run(files.sync_dir, directory)


@contextlib.contextmanager
def _alone(files: Files, path: str, temporary: str) -> Iterator[None]:
    """While nobody else writes that backup: the lock is that of the unfinished file, which a killed process leaves."""
    _check_free(files, path)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.lock(temporary))
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing a backup to {path}: choose another name, or wait until it ends"
            ) from None
        try:
            _check_free(files, path)  # that process may have ended just now
        except ConfigError:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(temporary)
            raise
        yield


def _check_free(files: Files, path: str) -> None:
    if files.exists(path):
        raise ConfigError(f"{path} exists: a backup replaces no file")


def _emptied(files: Files, path: str) -> File:
    file = files.open(path)
    file.truncate(0)
    return file


class BackupReader:
    """Reads a backup; made by `reading`. `end` is set once `nodes` has come to its end: then the file is sound."""

    def __init__(self, path: str, file: File, worker: Worker) -> None:
        self._path = path
        self._file = file
        self._worker = worker
        self.end: BackupEnd | None = None
        self.size = file.size()
        self.done_bytes = 0

    async def header(self) -> BackupHeader:
        """The first line. Raises `CorruptDataError`, and `UnsupportedVersionError` for a newer format."""
        async with contextlib.aclosing(self._lines()) as lines:
            async for line in lines:
                return self._header(line)
        raise self._damaged("it is empty")

    def _header(self, line: bytes) -> BackupHeader:
        try:
            fields = parsed(line)
            if fields.pop("format") != FORMAT:
                raise ValueError("it is no backup of bkpy's metadata")
            version = fields.pop("version")
            if type(version) is int and version > VERSION:
                raise UnsupportedVersionError(
                    f"{self._path} has format version {version}, this bkpy reads up to {VERSION}: upgrade it"
                )
            header = BackupHeader(**{name: fields[name] for name in BackupHeader.__dataclass_fields__})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"its first line can't be read: {error!r}") from error
        if any(type(value) is not kind for value, kind in zip(_values(header), _KINDS, strict=True)):
            raise self._damaged("its first line has a value of a wrong type")
        return header

    async def nodes(self) -> AsyncGenerator[BackupNode, None]:
        """All nodes. Raises `CorruptDataError` where a line isn't sound, or at the end if the checksum is wrong.

        So nothing of it counts before the end.
        """
        self.end = None
        total = hashlib.sha256()
        count = -1  # the header is a line, too
        async with contextlib.aclosing(self._lines()) as lines:
            async for line in lines:
                if self.end is not None:
                    raise self._damaged("there is something behind its end")
                if count < 0:
                    self._header(line)
                elif line.startswith(b"{"):
                    self.end = self._end(line, count, total.hexdigest())
                    continue
                else:
                    yield self._node(line, count)
                total.update(line)
                count += 1
        if self.end is None:
            raise self._damaged("it ends too early: it was cut off")

    def _node(self, line: bytes, number: int) -> BackupNode:
        try:
            path, data = parsed(line)
            if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
                raise ValueError("no path")
            return BackupNode(path, base64.b64decode(data, validate=True))
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise self._damaged(f"node {number} can't be read: {error!r}") from error

    def _end(self, line: bytes, nodes: int, checksum: str) -> BackupEnd:
        try:
            end = BackupEnd(**parsed(line)["end"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"its last line can't be read: {error!r}") from error
        if end.checksum != checksum or end.nodes != nodes:
            raise self._damaged("its checksum is wrong")
        return end

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        """Every line, with its end. What is left without one is damage."""
        unpacker = zlib.decompressobj(_GZIP)
        rest = b""
        offset = self.done_bytes = 0
        while offset < self.size:
            packed = await self._worker.run(self._file.pread, _CHUNK_BYTES, offset)
            if not packed:
                break
            offset += len(packed)
            while packed:
                try:
                    chunk = unpacker.decompress(packed, _CHUNK_BYTES)
                except zlib.error as error:
                    raise self._damaged(str(error)) from error
                if unpacker.eof and (unpacker.unused_data or offset < self.size):
                    raise self._damaged("there is something behind its end")
                packed = unpacker.unconsumed_tail
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_BYTES_MAX:
                    raise self._damaged("a line is too long")
                for line in lines:
                    yield line + b"\n"
                if not chunk:
                    break
            self.done_bytes = offset
        if not unpacker.eof or rest:
            raise self._damaged("it ends too early: it was cut off")

    def _damaged(self, what: str) -> CorruptDataError:
        return CorruptDataError(f"the backup is damaged, and nothing of it is used: {what}", path=self._path)


_KINDS: Final = (str, str, str, int, str, int)


def _values(header: BackupHeader) -> Iterator[object]:
    return (getattr(header, name) for name in BackupHeader.__dataclass_fields__)


@contextlib.asynccontextmanager
async def reading(files: Files, path: str) -> AsyncIterator[BackupReader]:
    """A backup that was written. Raises `ConfigError` if there is no such file, or it is a pipe."""
    with contextlib.closing(files.worker("backup")) as worker:
        try:
            file = await worker.run(_opened, files, path)
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
        try:
            yield BackupReader(path, file, worker)
        finally:
            file.close()


def _opened(files: Files, path: str) -> File:
    if files.is_stream(path):  # which also would wait, where nobody writes, and couldn't be interrupted
        raise ConfigError(f"{path} can't be read twice, as a backup is: give a file, not a pipe")
    return files.open(path, read_only=True)


async def verify(
    reader: BackupReader,
    read: Callable[[int], None] = lambda count: None,
    look: Callable[[BackupNode], None] = lambda node: None,
) -> BackupEnd:
    """Read all of a backup, let `look` see each node, and see that it is sound."""
    count = 0
    async with contextlib.aclosing(reader.nodes()) as nodes:
        async for node in nodes:
            look(node)
            count += 1
            read(count)
    assert reader.end is not None
    return reader.end
