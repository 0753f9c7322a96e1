"""Versioned JSON values of the metadata store: their bytes, and how they are read.

Invariants: `version` comes first; fields that this version doesn't know survive; a value of a newer version is never
taken for a damaged one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_NONE: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The format of one kind of value. `what` names it in errors, to which `advice` adds what to do about damage."""

    what: str
    version: int
    advice: str = ""

    def encode(self, fields: Mapping[str, Any], unknown: Mapping[str, Any] = _NONE) -> bytes:
        """The value with these fields, and the `unknown` ones that `decode` left."""
        return json.dumps({"version": self.version, **fields, **unknown}).encode()

    def decode(self, data: bytes, make: Callable[[dict[str, Any]], T], *, what: str = "", **where: Any) -> T:
        """The result of `make`, which takes the known fields out of the dict; the others are unknown.

        Raises `UnsupportedVersionError` for a newer version, and `CorruptDataError` for any other value that is not in
        this format, or that `make` refuses by a `ValueError`, `KeyError`, `TypeError` or `AttributeError`. Both
        name `what` instead of the kind if it is given, and carry `where`.
        """
        what = what or self.what
        try:
            fields = parsed(data)
            version = fields.pop("version")
            if type(version) is not int or version < 1:
                raise ValueError(f"{version!r} is no format version")
            if version > self.version:
                raise UnsupportedVersionError(
                    f"{what} has format version {version}, this bkpy reads up to {self.version}: upgrade it",
                    **where,
                )
            return make(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{what} is unreadable: {error!r}{self.advice}", **where) from error


def fields_of(data: bytes) -> dict[str, Any]:
    """The fields of a value of any version, to be shown or compared; none if it is no JSON object."""
    try:
        fields = parsed(data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def take(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    """Take a field out. `ValueError` if it is of another type, `KeyError` if it is missing."""
    value = fields.pop(name)
    if type(value) is not kind:
        raise ValueError(f"{name} = {value!r} is no {kind.__name__}")
    return value
