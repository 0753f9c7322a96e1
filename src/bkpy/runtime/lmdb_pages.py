"""Looks for damage in the pages of an LMDB environment, in a process of its own: `python lmdb_pages.py DIRECTORY`.

LMDB trusts its file: on damaged pages it crashes, goes round in circles, or finds less than there is. Nothing of this
process's findings is about rows, which have checksums of their own.

Invariants: whoever gets no complaint can open and change the environment without a crash, and every row is found where
a look-up searches for it. The library itself gets at the file only after its pages were found sound here.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from array import array
from operator import lt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

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

_PAGE = struct.Struct("<QHHHH")
_DB = struct.Struct("<IHHQQQQQ")
_HEAD = struct.Struct("<IIQQ")
_TAIL = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")


class PageError(Exception):
    """What is wrong with a page."""


class _Tree(NamedTuple):
    """One of the environment's two trees as its meta page describes it."""

    page_bytes: int  # only that of the first tree is set
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class _Meta(NamedTuple):
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


class _Counts:
    """What a walk through a tree has come across."""

    def __init__(self) -> None:
        self.branches = self.leaves = self.overflows = self.entries = 0


class Pages:
    """The pages of one environment's file."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._page_bytes = 4096
        self._meta = self._newest_meta()
        self._used = bytearray(self._meta.last_page + 1)  # 1: in a tree, 2: free
        self._free: list[bytes] = []  # lists of free pages, as they are stored

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
        at += _HEAD.size
        free = _Tree(*_DB.unpack_from(self._data, at))
        main = _Tree(*_DB.unpack_from(self._data, at + _DB.size))
        last_page, transaction = _TAIL.unpack_from(self._data, at + 2 * _DB.size)
        if free.page_bytes != self._page_bytes or free.flags != _INTEGER_KEYS or main.flags or main.page_bytes:
            raise PageError(f"meta page {number} describes another kind of environment")
        # Pages that were never written, having been free again at once, may lie behind the end; never that many.
        if last_page > 2 * (len(self._data) // self._page_bytes) + _UNWRITTEN_MAX:
            raise PageError(f"meta page {number} says that the last page is {last_page}")
        return _Meta(free, main, last_page, transaction)

    # --- trees --------------------------------------------------------------------------------------------------------

    def _walk(self, tree: _Tree, name: str, *, integers: bool) -> None:
        counts = _Counts()
        if tree.root != _NO_ROOT:
            if not 0 < tree.depth <= _DEPTH_MAX:
                raise PageError(f"the tree of {name} is said to be {tree.depth} pages deep")
            self._walk_page(tree.root, tree.depth, None, None, counts, integers)
        told = (tree.branches, tree.leaves, tree.overflows, tree.entries)
        found = (counts.branches, counts.leaves, counts.overflows, counts.entries)
        if told != found or (tree.root == _NO_ROOT and tree.depth):
            raise PageError(
                f"the tree of {name} has {found} branch, leaf and overflow pages and entries, its meta page says {told}"
            )

    def _walk_page(
        self, number: int, depth: int, low: bytes | None, high: bytes | None, counts: _Counts, integers: bool
    ) -> None:
        """Check a page, whose keys are to be low <= key < high, and all below it."""
        page, halves = self._page(number, _LEAF if depth == 1 else _BRANCH)
        count, rest = divmod(halves[6] - _HEADER_BYTES, 2)
        upper = halves[7]
        if count < 1 or rest or not halves[6] <= upper <= len(page):
            raise PageError(f"page {number}: its free space can't be from {halves[6]} to {upper}")
        places = halves[8 : 8 + count]
        if max(places) > len(page) - _NODE_BYTES or min(places) < upper or any(place & 1 for place in places):
            raise PageError(f"page {number}: a node lies outside of it")
        lengths = [halves[(place >> 1) + 3] for place in places]
        keys = [page[place + 8 : place + 8 + length] for place, length in zip(places, lengths, strict=True)]
        if depth > 1:
            children = [
                halves[place >> 1] | halves[(place >> 1) + 1] << 16 | halves[(place >> 1) + 2] << 32 for place in places
            ]
            self._check_nodes(number, places, [8 + length for length in lengths], upper, len(page))
            # A search never looks at the first key, and it may be anything.
            self._check_order(number, keys[1:], low, high, integers)
            counts.branches += 1
            bounds = [low, *keys[1:], high]
            for child, child_low, child_high in zip(children, bounds[:-1], bounds[1:], strict=True):
                self._walk_page(child, depth - 1, child_low, child_high, counts, integers)
            return
        counts.leaves += 1
        counts.entries += count
        sizes = self._leaf_sizes(number, page, halves, places, lengths, counts, integers)
        self._check_nodes(number, places, sizes, upper, len(page))
        self._check_order(number, keys, low, high, integers)

    def _page(self, number: int, kind: int) -> tuple[bytes, array[int]]:
        """The page's bytes, also as 16-bit numbers; it is used from now on."""
        self._take(number, 1, 1)
        start = number * self._page_bytes
        page = self._data[start : start + self._page_bytes]
        if len(page) < self._page_bytes:
            raise PageError(f"the file ends before page {number}")
        halves = array("H", page)
        if _U64.unpack_from(page)[0] != number or halves[5] != kind:
            raise PageError(f"page {number} is not what the page above it says")
        return page, halves

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
        flags = [halves[(place >> 1) + 2] for place in places]
        values = [halves[place >> 1] for place in places]
        high = [halves[(place >> 1) + 1] for place in places]
        if not integers and not any(flags) and not any(high):
            return [_NODE_BYTES + key + value for key, value in zip(lengths, values, strict=True)]
        sizes = []
        for place, key, flag, low_half, high_half in zip(places, lengths, flags, values, high, strict=True):
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

    def _check_nodes(
        self, number: int, places: Sequence[int], sizes: Sequence[int], upper: int, page_bytes: int
    ) -> None:
        """Nodes lie one after the other, from the end of the free space to the end of the page."""
        starts = set(places)
        ends = {place + size + (size & 1) for place, size in zip(places, sizes, strict=True)}
        if len(starts) != len(places) or len(ends) != len(places) or starts | {page_bytes} != ends | {upper}:
            raise PageError(f"page {number}: its nodes overlap, or leave gaps")

    def _check_order(
        self, number: int, keys: Sequence[bytes], low: bytes | None, high: bytes | None, integers: bool
    ) -> None:
        if integers:
            if any(len(key) != _U64.size for key in keys):
                raise PageError(f"page {number}: a key isn't a number")
            keys, low, high = [key[::-1] for key in keys], low and low[::-1], high and high[::-1]
        if not all(map(lt, keys, keys[1:])):
            raise PageError(f"page {number}: its keys are not in order")
        if keys and (not keys[0] or (low is not None and keys[0] < low) or (high is not None and keys[-1] >= high)):
            raise PageError(f"page {number}: a key lies where no search would look for it")

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


def find_damage(path: str) -> str | None:
    """What is wrong with the environment's file `path`, None if nothing is."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return "the file is empty"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                Pages(data).check()
            except PageError as e:
                return str(e)
    return None


def _main(directory: str) -> int:
    damage = find_damage(os.path.join(directory, "data.mdb"))
    if damage is not None:
        print(damage)
        return DAMAGED
    import lmdb  # only now

    with lmdb.open(directory, readonly=True, lock=False, create=False, readahead=False) as env, env.begin() as txn:
        for _ in txn.cursor().iternext(keys=True, values=False):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
