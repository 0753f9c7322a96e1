"""Tells a failed run as a story, in the order of its virtual time, and writes it as a test ready to commit."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.cluster import NATIVE

from .bookkeeper_part import BOOKKEEPER
from .oracle import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.sim.world import Event

    from .plan import Actor, Fault, Plan
    from .run import Outcome

# What hosts go through, whichever ledger is looked at.
LIVES = {"boot", "crash", "power cut", "gave up", "start failed", "ledger directories", "runs the code of"}
# Those who tell of one ledger each, whose name is the first word.
TELLERS = {"writer", "reader", "store", "deletion", "client"}
OF_A_LEDGER = {"recovered", "recovery failed", "collected"}
_LEDGERS = re.compile(r"\b(?:ledgers?|appends to) [\[{]?(\d+(?:, \d+)*)")


def tell(outcome: Outcome) -> str:
    """What was violated, what the plan is, and what happened that has to do with it."""
    plan, error = outcome.plan, outcome.error
    text = f"{type(error).__name__}: {error}"
    trees = [error.tree] if isinstance(error, Violation) else [NATIVE, BOOKKEEPER]
    ids = {int(ledger_id) for found in _LEDGERS.findall(text) for ledger_id in found.split(", ")}
    about = {tree.name_of(ledger_id) for tree in trees for ledger_id in ids}
    lines = [f"{outcome.invariant} is violated: {text}", "", *_setting(plan), ""]
    happened = [*_that_matters(outcome.trace, about), *_begun(plan, outcome.trace)]
    lines += [_line(*one) for one in _together(sorted(happened, key=lambda one: one[0]))]
    return "\n".join(lines)


def _setting(plan: Plan) -> Iterator[str]:
    shape = plan.shape
    yield f"Seed {plan.seed}: {shape['bookies']} bookies, {shape['clients']} clients, {shape['workers']} workers."
    if plan.features:
        yield f"Features: {', '.join(sorted(plan.features))}."
    if plan.bounds:
        yield f"Settings: {_options(plan.bounds)}."
    faults = ", ".join(fault.kind for fault in plan.faults) or "none"
    yield f"Faults: {faults}. Actors: {', '.join(actor.key for actor in plan.actors) or 'none'}."


def _begun(plan: Plan, trace: Iterable[Event]) -> Iterator[tuple[float, str, str]]:
    """When each actor begins. Times of a plan count from the operator's first boot."""
    began = next((event.time for event in trace if (event.host, event.what) == ("operator", "boot")), 0.0)
    for actor in plan.actors:
        options = {name: value for name, value in actor.options.items() if name != "host"}
        yield began + actor.at_s, str(actor.options.get("host", "operator")), f"{actor.key} begins: {_options(options)}"


def _that_matters(trace: Iterable[Event], about: set[str]) -> Iterator[tuple[float, str, str]]:
    """Faults, deaths and starts, and what concerns the ledgers `about`; of all ledgers if none is named."""
    for event in trace:
        first, _, rest = event.detail.partition(" ")
        if event.host in TELLERS or event.what in OF_A_LEDGER:
            if not about or first in about:
                yield event.time, event.host, f"{event.what}, ledger {first}: {rest}".rstrip(": ")
        elif _is_news(event):
            yield event.time, event.host, f"{event.what} {event.detail}".rstrip()


def _is_news(event: Event) -> bool:
    """Whether it is told of, whichever ledger the story is about."""
    if event.host in ("event", "oracle"):
        return event.what != "satisfied"
    return event.what in LIVES or event.what.startswith("log ")


def _together(happened: Iterable[tuple[float, str, str]]) -> Iterator[tuple[float, str, str]]:
    """One line for acknowledgements in a row."""

    def series(one: tuple[float, str, str]) -> str:
        return one[2].rpartition(" ")[0] if one[2].startswith("acknowledged") else repr(one)

    for what, some in groupby(happened, series):
        first, *rest = some
        yield first if not rest else (first[0], first[1], f"{what} {first[2].split()[-1]} to {rest[-1][2].split()[-1]}")


def _line(time: float, host: str, what: str) -> str:
    return f"{time:10.3f} s  {host:10} {what}"


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def as_test(outcome: Outcome, seed: str) -> str:
    """The source of a test that plays the plan, and fails as long as it violates anything. `seed`: with its run."""
    name = re.sub(r"\W+", "_", f"{outcome.invariant} {seed}".lower())
    source = f'''"""What the seed {seed} shrank to, which violated {outcome.invariant}."""

from __future__ import annotations

from tests.sim.everything.plan import Actor, Fault, Plan
from tests.sim.everything.run import play

# {" ".join(str(outcome.error).split())[:110]}
PLAN = {_literal(outcome.plan)}


def test_{name}() -> None:
    outcome = play(PLAN)
    assert outcome.error is None, f"{{outcome.invariant}}: {{outcome.error}}"
'''
    if not outcome.plan.faults:
        source = source.replace("import Actor, Fault, Plan", "import Actor, Plan")
    if not outcome.plan.actors:
        source = source.replace("import Actor, ", "import ")
    ruff = [str(Path(sys.executable).with_name("ruff")), "format", "--line-length", "120", "-"]
    return subprocess.run(ruff, input=source, capture_output=True, check=True, text=True).stdout


def _literal(plan: Plan) -> str:
    """The plan as Python."""

    def items(some: Iterable[Actor | Fault]) -> str:
        return "(" + "".join(f"{one!r}," for one in some) + ")"

    features = f"frozenset({sorted(plan.features)!r})" if plan.features else "frozenset()"
    return (
        f"Plan(seed={plan.seed}, size={plan.size!r}, shape={dict(plan.shape)!r}, features={features}, "
        f"bounds={dict(plan.bounds)!r}, actors={items(plan.actors)}, faults={items(plan.faults)})"
    )
