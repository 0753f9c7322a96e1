"""Which settings of a running bookie may change without a restart, and the one place that changes them.

Invariant: only settings that are marked `RELOADABLE` change, all of them together, and only to values that passed every
check together with the ones that stay. Code that uses such a setting reads it from the bookie's settings at each use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bkpy.config.base import RELOADABLE, Settings
from bkpy.config.checking import build

if TYPE_CHECKING:
    from collections.abc import Collection

S = TypeVar("S", bound=Settings)


class SettingChange(NamedTuple):
    """One setting, with its values for people; those of secrets are not shown."""

    setting: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.setting} from {self.before} to {self.after}"


class Comparison(NamedTuple):
    """What a reload changes, and what only a restart does."""

    changed: list[SettingChange]
    needs_restart: list[SettingChange]


def reloadable(model: type[Settings]) -> frozenset[str]:
    """The settings that may change without a restart."""
    return frozenset(name for name, field in model.model_fields.items() if field.json_schema_extra == RELOADABLE)


def shown(model: type[Settings], name: str, value: object) -> str:
    """The value of a setting for people."""
    if name in model.secrets():
        return "none" if value is None else "(secret)"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def compare(before: S, after: S) -> Comparison:
    """What differs between the settings that were read last and the ones that were read now."""
    model, may = type(before), reloadable(type(before))
    differing = [name for name in model.model_fields if getattr(before, name) != getattr(after, name)]
    found = [
        SettingChange(n, shown(model, n, getattr(before, n)), shown(model, n, getattr(after, n))) for n in differing
    ]
    return Comparison([one for one in found if one.setting in may], [one for one in found if one.setting not in may])


def take_over(live: S, after: S, names: Collection[str]) -> None:
    """Give the running settings these values. `ConfigError`, and no change, if they don't fit the ones that stay."""
    values: dict[str, Any] = {name: getattr(live, name) for name in type(live).model_fields}
    build(type(live), {**values, **{name: getattr(after, name) for name in names}}, {})
    live.__dict__.update({name: getattr(after, name) for name in names})
