"""The base of all settings: units, types, groups.

Invariants: an unknown name is refused, so is a value of the wrong type or out of its range, and settings never change
after they were checked. Each field belongs to the group of the class that declares it; a field without a group is a
tuning value.
"""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECONDS_MAX = 1e9  # thirty years are as good as never; far more could not be counted in milliseconds
SIZE_MAX = 1 << 60  # far more than anybody has; the system's calls take 64 bits

RELOADABLE: Final[dict[str, JsonValue]] = {"reloadable": True}  # extra of a field that a running bookie can change

Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0, le=SIZE_MAX)]
Mebibytes = Annotated[int, Field(gt=0, le=SIZE_MAX // MIB)]

Group = Literal["basic", "storage", "network", "healing", "logs", "security"]
GROUPS: Final[tuple[Group, ...]] = get_args(Group)  # in the order of the documentation


class Settings(BaseModel):
    # Strict: a quoted number or a boolean where a count belongs is a mistake, not a spelling. Our errors show the value
    # unless it is a secret; pydantic's own, which a traceback shows behind them, would show all of them.
    # Most classes only give their fields to others, so a validator is built at the first use: `import bkpy` is quicker.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)

    group: ClassVar[Group | None] = None  # of the fields that a class declares itself

    def __new__(cls, **values: object) -> Self:
        """`ConfigError` for a wrong name, with the nearest right one, which pydantic's own error doesn't say."""
        if unknown := values.keys() - cls.model_fields.keys():
            check_names(cls.model_fields, min(unknown), cls.__name__)
        return super().__new__(cls)

    @classmethod
    @functools.cache
    def secrets(cls) -> frozenset[str]:
        """The names of settings whose values are shown nowhere."""
        return frozenset(name for name, field in cls.model_fields.items() if "SecretStr" in str(field.annotation))

    @classmethod
    @functools.cache
    def groups(cls) -> Mapping[str, Group | None]:
        """The group of each field by its name, None for a tuning value."""
        found: dict[str, Group | None] = {}
        for base in reversed(cls.__mro__):  # a class that declares a field comes before its heirs
            if issubclass(base, Settings):
                for name in base.model_fields:
                    found.setdefault(name, base.group)
        return found

    @classmethod
    def public(cls) -> list[str]:
        """The names that users set, by group, basic first."""
        groups = cls.groups()
        return [name for group in GROUPS for name, own in groups.items() if own == group]


def check_names(valid: Collection[str], name: str, origin: str, written: Callable[[str], str] = str) -> None:
    """`ConfigError` with the nearest valid name if this one, which came from `origin`, isn't valid."""
    if name not in valid:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), valid, n=1)
        nearest = f"; the nearest valid one is {written(near[0])}" if near else ""
        raise ConfigError(f"{origin}: unknown setting {written(name)}{nearest}")


def encodes(text: str) -> bool:
    """Whether UTF-8 can encode it. Bytes of an argument or a variable that are no UTF-8 become text that it can't."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_user_and_password(text: str) -> None:
    """`ValueError`, which doesn't repeat it, if this is not USER:PASSWORD."""
    user, colon, password = text.partition(":")
    if not user or not colon or not password:
        raise ValueError("expected USER:PASSWORD")
    if not encodes(text):
        raise ValueError("expected USER:PASSWORD in UTF-8")
