"""Looks for damage in the pages of an LMDB environment, in a process of its own: see `main`.

LMDB trusts its file: on damaged pages it crashes, loops, or finds fewer rows than there are. This process checks pages
only; rows have checksums of their own.

Every start reads every page in use, but checking all of a leaf takes ten times as long as its checksum. So a file
beside the environment has the checksums of leaves that were found sound. A checksum means *with these bytes the page is
a sound leaf*, at any time, so an old one, or a missing one, costs time and is never wrong.

Invariants: after a run without a complaint, a process can open and change the environment without a crash, and a
look-up finds every row. The library itself opens the file only after its pages were found sound here. The module
imports only what loads quickly: a start waits for it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from array import array
from operator import lt

TYPE_CHECKING = False  # to import `typing` takes longer than to look at a small environment
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

DATA_NAME: Final = "data.mdb"
SOUND_NAME: Final = "sound.pages"  # the checksums of sound leaves
DAMAGED: Final = 3  # exit status; what was found is on standard output

_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_HEADER_BYTES: Final = 16  # of a page
_NODE_BYTES: Final = 8  # of a node's header
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # flags of pages
_BIG: Final = 1  # flag of a node whose value is on overflow pages
_INTEGER_KEYS: Final = 8
_NO_ROOT: Final = (1 << 64) - 1
_UNWRITTEN_MAX: Final = 1 << 16
_DEPTH_MAX: Final = 32  # LMDB's own
_STEP_PAGES: Final = 64
_SOUND_MAGIC: Final = b"bkpages\x01"

_PAGE = struct.Struct("<QHHHH")
_DB = struct.Struct("<IHHQQQQQ")
_HEAD = struct.Struct("<IIQQ")
_TAIL = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")
_U16 = struct.Struct("<H")
_SOUND = struct.Struct("<8sII")  # magic, checksum of what follows, bytes of a page; a checksum for each page follows


class PageError(Exception):
    """What is wrong with a page."""


class _Tree:
    """One of the environment's two trees as its meta page describes it."""

    def __init__(self, data: mmap.mmap | bytes, at: int) -> None:
        # The bytes of a page are set only in the first tree.
        self.page_bytes, self.flags, self.depth, self.branches, self.leaves, self.overflows, self.entries, self.root = (
            _DB.unpack_from(data, at)
        )


class _Meta:
    def __init__(self, data: mmap.mmap | bytes, at: int) -> None:
        self.free = _Tree(data, at)
        self.main = _Tree(data, at + _DB.size)
        self.last_page, self.transaction = _TAIL.unpack_from(data, at + 2 * _DB.size)


class _Counts:
    """What a walk through a tree has come across."""

    def __init__(self) -> None:
        self.branches = self.leaves = self.overflows = self.entries = 0


class SoundLeaves:
    """Checksums of leaves, by page number, that were found sound by themselves and hold all of their values; 0: none.

    What a leaf has to do with other pages, that it is used once and that its keys lie where a search looks, is not
    among what was found.
    """

    def __init__(self, path: str, page_bytes: int, pages: int) -> None:
        """Read from the file, none where that can't be believed."""
        self.before = b""
        self.checksums = array("I")
        try:
            with open(path, "rb") as file:
                stored = file.read()
        except OSError:
            stored = b""
        body = stored[_SOUND.size :]
        if stored[: _SOUND.size] == _SOUND.pack(_SOUND_MAGIC, zlib.crc32(body), page_bytes) and len(body) % 4 == 0:
            self.before = stored
            self.checksums.frombytes(body[: 4 * pages])
        self.checksums.extend(array("I", bytes(4 * (pages - len(self.checksums)))))
        self._path = path
        self._page_bytes = page_bytes

    def keep(self) -> None:
        """Write the file, which may get lost or damaged: then it is not believed. A disk that is full has none."""
        body = self.checksums.tobytes()
        stored = _SOUND.pack(_SOUND_MAGIC, zlib.crc32(body), self._page_bytes) + body
        if stored == self.before:
            return
        new = f"{self._path}.new"
        try:
            with open(new, "wb") as file:
                file.write(stored)
            os.rename(new, self._path)
        except OSError:
            return  # the next one writes over what is there


class Pages:
    """The pages of one environment's file. `sound_path`: of the file with checksums of leaves."""

    def __init__(self, data: mmap.mmap | bytes, sound_path: str) -> None:
        self._data = data
        self._page_bytes = 4096
        self._meta = self._newest_meta()
        self._used = bytearray(self._meta.last_page + 1)  # 1: in a tree, 2: free
        self._free: list[bytes] = []  # lists of free pages, as they are stored
        self.sound = SoundLeaves(sound_path, self._page_bytes, len(self._used))
        self.looked_into: list[tuple[bytes, int]] = []  # (first key, rows) of each leaf of rows that was not known

    def check(self) -> None:
        """`PageError` if anything is wrong."""
        self._used[0] = self._used[1] = 1
        self._walk(self._meta.main, "the rows", integers=False)
        self._walk(self._meta.free, "the free pages", integers=True)
        for stored in self._free:
            self._check_free(stored)

    # --- meta pages ---------------------------------------------------------------------------------------------------

    def _newest_meta(self) -> _Meta:
        if len(self._data) < _HEADER_BYTES + 8:
            raise PageError("the file is empty or too short for its first page")
        self._page_bytes = _DB.unpack_from(self._data, _HEADER_BYTES + _HEAD.size)[0]
        if not 512 <= self._page_bytes <= 65536 or self._page_bytes & (self._page_bytes - 1):
            raise PageError(f"page 0 says that pages have {self._page_bytes} bytes")
        first, second = self._meta_page(0), self._meta_page(1)
        ids = first.transaction, second.transaction
        if abs(ids[0] - ids[1]) > 1 or (ids != (0, 0) and (ids[0] % 2 or not ids[1] % 2)):
            raise PageError(f"pages 0 and 1 are of transactions {ids[0]} and {ids[1]}, which don't follow each other")
        return max(first, second, key=lambda meta: meta.transaction)

    def _meta_page(self, number: int) -> _Meta:
        start = number * self._page_bytes
        if len(self._data) < start + self._page_bytes:
            raise PageError(f"the file ends before page {number}")
        its_number, _, flags, _, _ = _PAGE.unpack_from(self._data, start)
        at = start + _HEADER_BYTES
        magic, version, address, _ = _HEAD.unpack_from(self._data, at)
        if (its_number, flags, magic, version, address) != (number, _META, _MAGIC, _DATA_VERSION, 0):
            raise PageError(f"page {number} is no meta page")
        meta = _Meta(self._data, at + _HEAD.size)
        free, main = meta.free, meta.main
        if free.page_bytes != self._page_bytes or free.flags != _INTEGER_KEYS or main.flags or main.page_bytes:
            raise PageError(f"meta page {number} describes another kind of environment")
        # Pages that were never written, having been free again at once, may lie behind the end; never that many.
        if meta.last_page > 2 * (len(self._data) // self._page_bytes) + _UNWRITTEN_MAX:
            raise PageError(f"meta page {number} says that the last page is {meta.last_page}")
        return meta

    # --- trees --------------------------------------------------------------------------------------------------------

    def _walk(self, tree: _Tree, name: str, *, integers: bool) -> None:
        counts = _Counts()
        if tree.root != _NO_ROOT:
            if not 0 < tree.depth <= _DEPTH_MAX:
                raise PageError(f"the tree of {name} is said to be {tree.depth} pages deep")
            self._walk_page(tree.root, tree.depth, None, None, counts, integers)
        recorded = (tree.branches, tree.leaves, tree.overflows, tree.entries)
        found = (counts.branches, counts.leaves, counts.overflows, counts.entries)
        if recorded != found or (tree.root == _NO_ROOT and tree.depth):
            raise PageError(
                f"the tree of {name} has {found} branch, leaf and overflow pages and entries, "
                f"its meta page says {recorded}"
            )

    def _walk_page(
        self, number: int, depth: int, low: bytes | None, high: bytes | None, counts: _Counts, integers: bool
    ) -> None:
        """Check a page, whose keys are to be low <= key < high, and all below it."""
        page = self._page(number)
        if depth == 1:
            self._walk_leaf(number, page, low, high, counts, integers)
            return
        halves = _halves(number, page, _BRANCH)
        places, lengths, keys = _nodes(number, page, halves)
        children = [
            halves[place >> 1] | halves[(place >> 1) + 1] << 16 | halves[(place >> 1) + 2] << 32 for place in places
        ]
        _check_nodes(number, places, [8 + length for length in lengths], halves[7], len(page))
        # A search never looks at the first key, and it may be anything.
        _check_order(number, keys[1:], integers)
        _check_bounds(number, keys[1:], low, high, integers)
        counts.branches += 1
        bounds = [low, *keys[1:], high]
        for child, child_low, child_high in zip(children, bounds[:-1], bounds[1:], strict=True):
            self._walk_page(child, depth - 1, child_low, child_high, counts, integers)

    def _walk_leaf(
        self, number: int, page: bytes, low: bytes | None, high: bytes | None, counts: _Counts, integers: bool
    ) -> None:
        counts.leaves += 1
        checksum = zlib.crc32(page)
        if checksum and self.sound.checksums[number] == checksum and not integers:
            lower = _U16.unpack_from(page, 12)[0]
            counts.entries += (lower - _HEADER_BYTES) // 2
            _check_bounds(number, [_key_at(page, _HEADER_BYTES), _key_at(page, lower - 2)], low, high, integers)
            return
        self.sound.checksums[number] = 0
        halves = _halves(number, page, _LEAF)
        places, lengths, keys = _nodes(number, page, halves)
        counts.entries += len(places)
        sizes = plain = None if integers else _plain_sizes(halves, places, lengths)
        if sizes is None:
            sizes = self._leaf_sizes(number, page, halves, places, lengths, counts, integers)
        _check_nodes(number, places, sizes, halves[7], len(page))
        _check_order(number, keys, integers)
        _check_bounds(number, keys, low, high, integers)
        if not integers:
            self.looked_into.append((keys[0], len(keys)))
        if plain is not None:
            self.sound.checksums[number] = checksum

    def _page(self, number: int) -> bytes:
        """The page's bytes; it is used from now on."""
        self._take(number, 1, 1)
        start = number * self._page_bytes
        page = self._data[start : start + self._page_bytes]
        if len(page) < self._page_bytes:
            raise PageError(f"the file ends before page {number}")
        return page

    def _take(self, first: int, count: int, use: int) -> None:
        end = first + count
        if not 1 < first < end <= len(self._used):
            raise PageError(f"page {first} is named, and the last one is {len(self._used) - 1}")
        if any(self._used[first:end]):
            raise PageError(f"page {first} is in two places" if use == 1 else f"page {first} is in use, or free twice")
        self._used[first:end] = bytes((use,)) * count

    def _leaf_sizes(
        self,
        number: int,
        page: bytes,
        halves: array[int],
        places: Sequence[int],
        lengths: Sequence[int],
        counts: _Counts,
        integers: bool,
    ) -> list[int]:
        """The bytes of each node; pages that hold values are checked, and free lists remembered."""
        sizes = []
        for place, key in zip(places, lengths, strict=True):
            low_half, high_half, flag = halves[place >> 1 : (place >> 1) + 3]
            value, start = low_half | high_half << 16, place + _NODE_BYTES + key
            stored = value
            if flag == _BIG:
                stored = _U64.size
            elif flag:
                raise PageError(f"page {number}: a node with flags {flag}")
            if start + stored > len(page):
                raise PageError(f"page {number}: a node runs past its end")
            sizes.append(_NODE_BYTES + key + stored)
            content = page[start : start + stored]
            if flag == _BIG:
                content = self._overflow(_U64.unpack(content)[0], value, counts)
            if integers:
                self._free.append(content)
        return sizes

    def _overflow(self, number: int, length: int, counts: _Counts) -> bytes:
        """The value that begins on this page."""
        if not 1 < number < len(self._used) or len(self._data) < (number + 1) * self._page_bytes:
            raise PageError(f"overflow page {number} lies outside of the file")
        start = number * self._page_bytes
        its_number, _, flags, low_half, high_half = _PAGE.unpack_from(self._data, start)
        pages = low_half | high_half << 16
        if (its_number, flags) != (number, _OVERFLOW) or pages * self._page_bytes < _HEADER_BYTES + length:
            raise PageError(f"page {number} is no overflow page for {length} bytes")
        self._take(number, pages, 1)
        counts.overflows += pages
        value = self._data[start + _HEADER_BYTES : start + _HEADER_BYTES + length]
        if len(value) < length:
            raise PageError(f"the file ends before the value on page {number}")
        return value

    def _check_free(self, stored: bytes) -> None:
        """A list of free pages: their number, then each, descending."""
        numbers = array("Q", stored[: len(stored) // 8 * 8])
        if not numbers or numbers[0] >= len(numbers):
            raise PageError("a list of free pages is longer than its value")
        listed = numbers[1 : numbers[0] + 1]
        if not all(map(lt, listed[1:], listed)):
            raise PageError("a list of free pages is not in order")
        for number in listed:
            self._take(number, 1, 2)


# --- one page ---------------------------------------------------------------------------------------------------------


def _halves(number: int, page: bytes, kind: int) -> array[int]:
    """The page as 16-bit numbers."""
    halves = array("H", page)
    if _U64.unpack_from(page)[0] != number or halves[5] != kind:
        raise PageError(f"page {number} is not what the page above it says")
    return halves


def _nodes(number: int, page: bytes, halves: array[int]) -> tuple[Sequence[int], list[int], list[bytes]]:
    """Where each node is, the length of its key, and the key."""
    count, rest = divmod(halves[6] - _HEADER_BYTES, 2)
    upper = halves[7]
    if count < 1 or rest or not halves[6] <= upper <= len(page):
        raise PageError(f"page {number}: its free space can't be from {halves[6]} to {upper}")
    places = halves[8 : 8 + count]
    if max(places) > len(page) - _NODE_BYTES or min(places) < upper or any(place & 1 for place in places):
        raise PageError(f"page {number}: a node lies outside of it")
    lengths = [halves[(place >> 1) + 3] for place in places]
    keys = [page[place + 8 : place + 8 + length] for place, length in zip(places, lengths, strict=True)]
    return places, lengths, keys


def _plain_sizes(halves: array[int], places: Sequence[int], lengths: Sequence[int]) -> list[int] | None:
    """The bytes of each node of a leaf, None if a value is not, or can't be, in it."""
    if any(halves[(place >> 1) + 2] | halves[(place >> 1) + 1] for place in places):  # flags, and lengths
        return None
    return [_NODE_BYTES + key + halves[place >> 1] for place, key in zip(places, lengths, strict=True)]


def _key_at(page: bytes, at: int) -> bytes:
    """The key of the node that the page's table of nodes has there; of a page that is sound."""
    start = _U16.unpack_from(page, at)[0] + _NODE_BYTES
    return page[start : start + _U16.unpack_from(page, start - 2)[0]]


def _check_nodes(number: int, places: Sequence[int], sizes: Sequence[int], upper: int, page_bytes: int) -> None:
    """Nodes lie one after the other, from the end of the free space to the end of the page."""
    starts = set(places)
    ends = {place + size + (size & 1) for place, size in zip(places, sizes, strict=True)}
    if len(starts) != len(places) or len(ends) != len(places) or starts | {page_bytes} != ends | {upper}:
        raise PageError(f"page {number}: its nodes overlap, or leave gaps")


def _check_order(number: int, keys: Sequence[bytes], integers: bool) -> None:
    if integers:
        if any(len(key) != _U64.size for key in keys):
            raise PageError(f"page {number}: a key isn't a number")
        keys = [key[::-1] for key in keys]
    if not all(map(lt, keys, keys[1:])) or (keys and not keys[0]):
        raise PageError(f"page {number}: its keys are not in order")


def _check_bounds(number: int, keys: Sequence[bytes], low: bytes | None, high: bytes | None, integers: bool) -> None:
    """`keys` are in order."""
    if not keys:
        return
    first, last = keys[0], keys[-1]
    if integers:
        first, last, low, high = first[::-1], last[::-1], low and low[::-1], high and high[::-1]
    if (low is not None and first < low) or (high is not None and last >= high):
        raise PageError(f"page {number}: a key lies where no search would look for it")


# --- the process ------------------------------------------------------------------------------------------------------


def look_through(directory: str) -> Pages:
    """The environment's pages, in which nothing is wrong; `PageError` if something is."""
    with open(os.path.join(directory, DATA_NAME), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise PageError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            pages = Pages(data, os.path.join(directory, SOUND_NAME))
            pages.check()
    return pages


def find_damage(directory: str) -> str | None:
    """What is wrong with the pages of the environment, None if nothing is."""
    try:
        look_through(directory)
    except PageError as e:
        return str(e)
    return None


def learn(directory: str, share: float) -> None:
    """Check the unknown leaves, while other processes may use the environment, and remember the sound ones.

    A page that is being written is read as it is at some moment: its checksum is of those very bytes. Takes that share
    of a processor, and ends early when its parent does.
    """
    parent = os.getppid()
    with open(os.path.join(directory, DATA_NAME), "rb") as file:
        if os.fstat(file.fileno()).st_size <= 2 * _HEADER_BYTES:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size = _DB.unpack_from(data, _HEADER_BYTES + _HEAD.size)[0]
            if not 512 <= size <= 65536:
                return
            sound = SoundLeaves(os.path.join(directory, SOUND_NAME), size, len(data) // size)
            began = time.perf_counter()
            for number in range(2, len(sound.checksums)):
                if number % _STEP_PAGES == 0:
                    time.sleep((time.perf_counter() - began) * (1 / share - 1))
                    if os.getppid() != parent:
                        break
                    began = time.perf_counter()
                page = data[number * size : (number + 1) * size]
                checksum = zlib.crc32(page)
                if sound.checksums[number] != checksum:
                    sound.checksums[number] = checksum if _is_plain_leaf(number, page) else 0
    sound.keep()


def _is_plain_leaf(number: int, page: bytes) -> bool:
    """Whether the page is a leaf of rows, sound by itself, and holds all of their values."""
    if _U16.unpack_from(page, 10)[0] != _LEAF:
        return False
    try:
        halves = _halves(number, page, _LEAF)
        places, lengths, keys = _nodes(number, page, halves)
        sizes = _plain_sizes(halves, places, lengths)
        if sizes is None:
            return False
        _check_nodes(number, places, sizes, halves[7], len(page))
        _check_order(number, keys, integers=False)
    except PageError:
        return False
    return True


def _walk_with_library(directory: str, looked_into: Sequence[tuple[bytes, int]]) -> str | None:
    """Let the library go through rows; what it can't find."""
    import lmdb  # only now

    with lmdb.open(directory, readonly=True, lock=False, create=False, readahead=False) as env, env.begin() as txn:
        cursor = txn.cursor()
        for key, rows in looked_into:
            if not cursor.set_key(key):
                return f"a search doesn't find the key {key.hex()}"
            for _ in range(rows - 1):
                cursor.next()
    return None


def main(directory: str) -> int:
    """Tell damage on standard output, and return `DAMAGED`; 0 if there is none."""
    try:
        pages = look_through(directory)
        damage = _walk_with_library(directory, pages.looked_into)
    except PageError as e:
        damage = str(e)
    if damage is not None:
        print(damage)
        return DAMAGED
    pages.sound.keep()
    return 0
