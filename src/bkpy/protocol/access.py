"""Access control: names in certificates, their rights, and the requests that each right allows. Pure.

A name is written as `cn:NAME` (the subject's common name), `dns:NAME` or `uri:URI` (alternative names). In a rule, `*`
stands for any characters but `.`, `/` and `:`, so that it never reaches into another part of a name.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, Final

from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


class Right(enum.Flag):
    """The rights of a name. The right to write includes the right to read."""

    NONE = 0
    READ = enum.auto()
    WRITE = enum.auto()  # fencing and recovery, which change ledgers, are part of it
    ADMINISTER = enum.auto()  # commands to bookies


ALL: Final = Right.READ | Right.WRITE | Right.ADMINISTER

# The lists in a file of rights, and their meaning.
LISTS: Final[Mapping[str, Right]] = {
    "read": Right.READ,
    "write": Right.READ | Right.WRITE,
    "administer": Right.ADMINISTER,
    "bookies": Right.READ | Right.WRITE,  # they recover and copy
}

_READS: Final = frozenset({Op.READ, Op.READ_LAC, Op.WAIT_LAC})
_WRITES: Final = frozenset({Op.PRESENT, Op.ADD, Op.WRITE_LAC, Op.FORCE})
_NAMES_SHOWN: Final = 5
_NAME_CHARS_SHOWN: Final = 200
NO_OPS: Final[frozenset[int]] = frozenset()


def forbidden_ops(rights: Right) -> frozenset[int]:
    """The requests that these rights don't allow. Where ADD is among them, so is any request that fences."""
    ops: frozenset[int] = NO_OPS
    if not rights & Right.READ:
        ops |= _READS
    if not rights & Right.WRITE:
        ops |= _WRITES
    return ops


class AccessRules:
    """The rules of a file of rights, by the names of its lists. Raises `ValueError` for an invalid rule."""

    def __init__(self, lists: Mapping[str, Iterable[str]]) -> None:
        self._rules = [(_pattern(rule), LISTS[name]) for name, rules in lists.items() for rule in rules]

    def rights_of(self, names: Collection[str]) -> Right:
        """The rights of all these names together."""
        rights = Right.NONE
        for pattern, right in self._rules:
            if any(pattern.fullmatch(name) for name in names):
                rights |= right
        return rights


def describe_names(names: Collection[str]) -> str:
    """A certificate's names for people: a few of them, always on one line, for it may be a line of a log."""
    if not names:
        return "a certificate without names"
    some = [_printable(name[:_NAME_CHARS_SHOWN]) for name in list(names)[:_NAMES_SHOWN]]
    more = len(names) - len(some)
    return ", ".join(some) + (f" and {more:,} more" if more else "")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _pattern(rule: str) -> re.Pattern[str]:
    kind, colon, name = rule.partition(":")
    if not colon or kind not in ("cn", "dns", "uri") or not name:
        raise ValueError(f"{rule!r} is not cn:NAME, dns:NAME or uri:URI")
    # ASCII: names of hosts have no other letters, and beyond them some count as the same that are not.
    flags = re.IGNORECASE | re.ASCII if kind == "dns" else re.NOFLAG
    first, *others = map(re.escape, rule.split("*"))
    if not others:
        return re.compile(first, flags)
    # The part between two stars matches at its first place only: a later one would do no better, since no star reaches
    # over a separator. With a try at every place, a rule of many stars would take years.
    *middle, last = others
    atoms = "".join(f"(?>[^./:]*?{part})" for part in middle)
    return re.compile(f"{first}{atoms}[^./:]*{last}", flags)


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of a certificate that was verified, as Python's `getpeercert` describes it; none of None."""
    if certificate is None:
        return ()
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    names = [f"cn:{value}" for key, value in subject if key == "commonName"]
    kinds = {"DNS": "dns", "URI": "uri"}
    names += [f"{kinds[kind]}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in kinds]
    return tuple(names)
