"""What all of a plan is drawn with: the world's shape, users of ledgers, ordinary faults, extreme settings.

Each concern has a random stream of its own, so that what joins later changes no draw of what was there before.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.buggify import BOOKIE, CLIENT

from .plan import Actor, Fault, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.sim.buggify import Bound

    from .plan import JSON, Options

SIZES = ([3, 3, 2], [3, 2, 2], [2, 2, 2], [3, 3, 3])  # ensemble, write quorum, ack quorum
WIDE = [4, 3, 2]

DEATHS = (
    *("crash", "power cut", "crash at a disk operation", "crash in a journal write"),
    *("failed fdatasync", "full journal disk"),
)
DISKS = ("slow disk", "full disk", "read errors")
LINKS = ("reset", "partition", "one-way block", "slow link")
STORE = ("store away", "session lost", "replies lost", "reply lost, then away")
OTHERS = ("blackout", "client dies", "worker dies", "clock jump", "clock drift", "cancelled calls")
KINDS = (*DEATHS, *DISKS, *LINKS, *STORE, *OTHERS)

FAULTS_QUICK = (0, 1, 2, 3, 3, 3, 6)  # features add others
QUICKEST_S = 0.25  # no interval of a quick plan is below it: a timer that fires all the time costs more than it shows


class Feature(NamedTuple):
    """What a seed has or has not. `draw` adds to the plan what comes with it."""

    chance: float  # that a plan of the size "quick" has it
    needs: frozenset[str]  # features without which it can't be
    draw: Callable[[Drawing], None]


class Drawing:
    """One plan while it is drawn; each concern has a stream of its own."""

    def __init__(self, seed: int, size: str, features: Mapping[str, Feature]) -> None:
        assert size in ("quick", "long"), size
        self.seed = seed
        self.size = size
        self.long = size == "long"
        self.features = self._features(features)
        self.shape = self._shape()
        self.bounds = self._bounds()
        self.actors: list[Actor] = []
        self.faults: list[Fault] = []
        self._add_users()
        self._add_faults()
        for name, feature in features.items():
            if name in self.features:
                feature.draw(self)

    def stream(self, concern: str) -> random.Random:
        return random.Random(f"plan-{concern}-{self.size}-{self.seed}")

    def plan(self) -> Plan:
        return Plan(
            self.seed,
            self.size,
            self.shape,
            frozenset(self.features),
            self.bounds,
            tuple(self.actors),
            tuple(self.faults),
        )

    def _features(self, features: Mapping[str, Feature]) -> set[str]:
        found = {
            name
            for name, feature in features.items()
            if self.stream(f"feature-{name}").random() < (max(0.6, feature.chance) if self.long else feature.chance)
        }
        return {name for name in found if features[name].needs <= found}

    def _shape(self) -> dict[str, JSON]:
        rng = self.stream("shape")
        healing = "healing" in self.features
        bookies = rng.choice((3, 3, 4)) + healing + ("loss of a host" in self.features)
        slow = rng.random() < 0.3
        return {
            "bookies": min(bookies, 6 if self.long else 5),
            "clients": 3 if self.long else 2,
            "workers": (2 if self.long else rng.choice((1, 1, 2))) if healing else 0,
            "storm_s": rng.uniform(20.0, 60.0) if self.long else rng.uniform(2.0, 5.0),
            "network_latency_s": [0.0005, 0.02] if slow else [0.00005, 0.0005],
            "metadata_latency_s": [0.01, 0.1] if rng.random() < 0.2 else [0.0002, 0.002],
            "metadata_timeout_s": rng.choice((0.3, 2.0, 10.0)),
            "session_timeout_s": rng.choice((2.0, 4.0, 10.0)),
            "client_settings": {
                "add_timeout_s": rng.choice((0.3, 1.0, 3.0)),
                "connect_timeout_s": rng.choice((0.3, 3.0)),
                "read_timeout_s": rng.choice((0.5, 2.0, 5.0)),
                "add_quorum_timeout_s": rng.choice((2.0, 30.0)),
                "no_bookies_timeout_s": rng.choice((0.5, 10.0)),
                "delay_ensemble_change": rng.random() < 0.2,
                "log_retention_interval_s": 0.5,
                "log_page_rows": self.stream("pages").choice((2, 3, 128)),
                **({"log_write_bytes_max": rng.choice((900, 2000))} if rng.random() < 0.4 else {}),
            },
            "unlucky": rng.randrange(min(bookies, 5)),  # the only bookie whose copies may be lost
        }

    # --- actors -------------------------------------------------------------------------------------------------------

    def add_actor(self, kind: str, rng: random.Random, options: dict[str, JSON], *, early: float = 1.0) -> Actor:
        number = sum(actor.kind == kind for actor in self.actors) + 1
        at_s = rng.random() * self.storm_s * 0.7 * early
        actor = Actor(f"{kind}-{number}".replace(" ", "-"), kind, round(at_s, 4), options)
        self.actors.append(actor)
        return actor

    @property
    def storm_s(self) -> float:
        storm_s = self.shape["storm_s"]
        assert isinstance(storm_s, float)
        return storm_s

    def client(self, rng: random.Random) -> str:
        clients = self.shape["clients"]
        assert isinstance(clients, int)
        return f"client-{rng.randrange(clients) + 1}"

    @property
    def bookies(self) -> int:
        bookies = self.shape["bookies"]
        assert isinstance(bookies, int)
        return bookies

    def bookie(self, rng: random.Random) -> int:
        return rng.randrange(self.bookies)

    def _add_users(self) -> None:
        """Of ledgers and logs."""
        rng = self.stream("actors")
        logs = "logs" in self.features
        ledgers = rng.randrange(5, 12) if self.long else rng.choice((1, 2) if logs else (2, 3, 4))
        entries = 2000 if self.long else (120 if logs else 200)
        writers = [self._add_writer(self.stream(f"writer-{n}"), entries // ledgers) for n in range(ledgers)]
        for writer in writers:
            self.add_company(writer.key)
        if logs:
            for n in range(2 if self.long else 1):
                self._add_log(self.stream(f"log-{n}"), f"log-{n + 1}", entries if self.long else 60)

    def other_bookie(self, rng: random.Random) -> int:
        """A bookie that is not the unlucky one."""
        return rng.choice([number for number in range(self.bookies) if number != self.shape["unlucky"]])

    def _add_writer(self, rng: random.Random, entries: int) -> Actor:
        roomy = self.bookies > 3 and not self.features & {
            "drain",
            "loss of a host",
        }  # for an ensemble of four at any time
        sizes = rng.choice((*SIZES[:3], *SIZES, *((WIDE,) if roomy else ())))
        options: dict[str, JSON] = {
            "host": self.client(rng),
            "sizes": sizes,
            "appends": rng.randrange(entries // 2, entries * 3 // 2),
            "batch_max": rng.choice((1, 5, 20)),
            "pause_s": rng.choice((0.01, 0.05, 0.3)),
            "end": rng.choice(("close", "close", "leave", "hold")),
        }
        return self.add_actor("writer", rng, options, early=0.3)

    def add_company(self, writer: str) -> None:
        """Clients that recover, read, follow, delete and move one ledger."""
        for feature, kind, chance in (
            ("duels", "duel", 0.5),
            ("readers", "reader", 0.5),
            ("tails", "tail", 0.5),
            ("moves", "move", 0.5),
            ("deletes", "deletion", 0.4),
        ):
            some = self.stream(f"{feature}-{writer}")
            if feature in self.features and some.random() < chance:
                self.add_actor(kind, some, {"host": self.client(some), "of": writer})

    def _add_log(self, rng: random.Random, name: str, appends: int) -> None:
        options: dict[str, JSON] = {
            "log": name,
            "sizes": rng.choice(SIZES[:3]),
            "retention_s": rng.choice((None, None, 0.2)),
        }
        for n in range(rng.choice((1, 2, 2, 3))):
            some = self.stream(f"{name}-writer-{n}")
            mine: dict[str, JSON] = {"host": self.client(some), "appends": appends // 2}
            self.add_actor("log writer", some, {**options, **mine}, early=1.0 if n else 0.2)
        some = self.stream(f"{name}-consumer")
        self.add_actor("consumer", some, {"log": name, "host": self.client(some)}, early=0.3)

    # --- faults -------------------------------------------------------------------------------------------------------

    def add_fault(
        self, key: str, kind: str, rng: random.Random, *, longest_s: float = 0.0, options: Options | None = None
    ) -> None:
        at_s, lasts_s = rng.random() * self.storm_s, (rng.random() * longest_s if longest_s else 0.0)
        self.faults.append(Fault(key, kind, round(at_s, 4), round(lasts_s, 4), options or {}))

    def put_fault(self, fault: Fault) -> None:
        """In place of an ordinary one, if there is any left: a quick plan has three faults in the median."""
        for n, one in enumerate(self.faults):
            if one.key.startswith("fault-"):
                self.faults[n] = fault
                return

    def add_death(self, key: str, at_s: float, lasts_s: float, bookie: int) -> None:
        self.faults.append(Fault(key, "crash", round(at_s, 4), round(lasts_s, 4), {"bookie": bookie}))

    def _add_faults(self) -> None:
        rng = self.stream("faults")
        kinds = [kind for kind in KINDS if self.stream(f"kind-{kind}").random() < 0.5] or [*DEATHS]
        if not self.shape["workers"]:
            kinds = [kind for kind in kinds if kind != "worker dies"] or [*DEATHS]
        for n in range(rng.randrange(5, 30) if self.long else rng.choice(FAULTS_QUICK)):
            some = self.stream(f"fault-{n}")
            kind = some.choice(kinds)
            at_s = some.random() * self.storm_s
            lasts_s = some.random() ** 2 * (12.0 if self.long else 4.0)
            options = self.fault_options(kind, some)
            self.faults.append(Fault(f"fault-{n + 1}", kind, round(at_s, 4), round(lasts_s, 4), options))

    def fault_options(self, kind: str, rng: random.Random) -> dict[str, JSON]:
        options: dict[str, JSON] = {"bookie": self.bookie(rng)}
        if kind in ("client dies", "cancelled calls"):
            return {"host": self.client(rng)}
        if kind == "worker dies":
            return {"host": self.host(rng, ("worker",))}
        if kind in ("clock jump", "clock drift"):
            return {"host": self.host(rng, ("client", "worker", "bookie")), "skew_s": rng.choice((-3600.0, -1.0, 5e5))}
        if kind in LINKS or kind in STORE:
            options["host"] = self.host(rng, ("client", "client", "worker", "bookie"))
        if kind == "crash at a disk operation":
            options["nth"] = rng.randrange(1, 60)
        elif kind == "crash in a journal write":
            options["nth"] = rng.randrange(1, 20)
        elif kind in ("failed fdatasync", "read errors"):
            options["nth"] = rng.randrange(1, 10)
        elif kind == "full disk":
            options["free_bytes"] = rng.choice((0, 1000, 100_000))
        elif kind == "slow link":
            options["extra_s"] = rng.choice((0.01, 0.1, 1.0))
        elif kind == "reply lost, then away":
            options["calls"] = rng.choice((0, 1, 1, 1, 2))
        return options

    @property
    def hosts(self) -> list[str]:
        """All that the world begins with."""
        counts = {"client": self.shape["clients"], "worker": self.shape["workers"], "bookie": self.shape["bookies"]}
        return [f"{role}-{n + 1}" for role, count in counts.items() for n in range(int(count))]  # type: ignore[arg-type]

    def host(self, rng: random.Random, roles: Sequence[str]) -> str:
        workers, bookies = self.shape["workers"], self.shape["bookies"]
        assert isinstance(workers, int)
        assert isinstance(bookies, int)
        role = rng.choice([role for role in roles if role != "worker" or workers])
        if role == "worker":
            return f"worker-{rng.randrange(workers) + 1}"
        return self.client(rng) if role == "client" else f"bookie-{rng.randrange(bookies) + 1}"

    # --- extreme settings ---------------------------------------------------------------------------------------------

    def _bounds(self) -> dict[str, int | float]:
        if "extreme settings" not in self.features:
            return {}
        chance = self.stream("bounds").choice((0.05, 0.1, 0.3))
        return {**self._drawn("bookie", BOOKIE, chance), **self._drawn("client", CLIENT, chance)}

    def _drawn(self, role: str, bounds: Mapping[str, Bound], chance: float) -> dict[str, int | float]:
        found: dict[str, int | float] = {}
        for name, bound in bounds.items():
            rng = self.stream(f"bound-{role}-{name}")
            struck, value = rng.random() < chance * bound.chance * 4, rng.choice(bound.small)
            if struck:
                quickest_s = QUICKEST_S / 5 if self.long else QUICKEST_S
                quick = name.endswith("_s") and 0 < value < quickest_s
                found[f"{role}.{name}"] = quickest_s if quick else value
        return found
