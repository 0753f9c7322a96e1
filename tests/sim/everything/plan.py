"""The whole schedule of one seed as data: the world's shape, its extreme settings, its actors and its faults.

Each actor and each fault has a key that names its random stream, so that dropping one changes no draw of another. What
a seed has is drawn by `features.py`.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Set

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Options: TypeAlias = Mapping[str, JSON]


@dataclass(frozen=True)
class Actor:
    """Someone who does something from `at_s` on: one writer, reader, drain, deletion."""

    key: str
    kind: str
    at_s: float
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at `at_s`, and is over `lasts_s` later."""

    key: str
    kind: str
    at_s: float
    lasts_s: float
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All that a run is to do. `bounds`: extreme settings, by "bookie." or "client." and the setting's name."""

    seed: int
    size: str
    shape: Options
    features: frozenset[str]
    bounds: Mapping[str, int | float]
    actors: tuple[Actor, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def draw(cls, seed: int, size: str = "quick") -> Plan:
        from .features import draw_plan  # which needs this module

        return draw_plan(seed, size)

    @property
    def parts(self) -> frozenset[str]:
        """What it is made of: features, kinds of actors and of faults, names of extreme settings."""
        return self.features.union((one.kind for one in (*self.actors, *self.faults)), self.bounds)

    def without(self, keys: Set[str]) -> Plan:
        """The same plan without these actors and faults."""
        return dataclasses.replace(
            self,
            actors=tuple(actor for actor in self.actors if actor.key not in keys),
            faults=tuple(fault for fault in self.faults if fault.key not in keys),
        )

    def calmer(self, names: Set[str]) -> Plan:
        """The same plan with these bounds at what they are in a calm run."""
        return dataclasses.replace(self, bounds={n: value for n, value in self.bounds.items() if n not in names})

    def stream(self, key: str) -> random.Random:
        """The random stream of an actor or a fault."""
        return random.Random(f"{key}-{self.seed}")

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "features": sorted(self.features)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        value["features"] = frozenset(value["features"])
        value["actors"] = tuple(Actor(**one) for one in value["actors"])
        value["faults"] = tuple(Fault(**one) for one in value["faults"])
        return cls(**value)
