"""The dashboard for Grafana shows metrics that bookies and clients have, in the shape that Grafana takes."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from prometheus_client import CollectorRegistry
from tests.in_process import ROOT, InProcess, runtime_here

from bkpy.config.recovery import RecoverySettings
from bkpy.replication.auto_recovery import AutoRecovery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(__file__).parents[3]
BOARD = json.loads((SOURCE / "deploy/grafana/bkpy.json").read_text())
SCHEMA = json.loads((Path(__file__).parent / "grafana.schema.json").read_text())
RULES = (SOURCE / "deploy/alarms.yml").read_text()
OF_PROMETHEUS = {"up", "ALERTS"}
FUNCTIONS = {"sum", "max", "min", "rate", "increase", "histogram_quantile", "avg_over_time", "time", "label_values"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in BOARD["templating"]["list"] if "definition" in variable)
    yield from (annotation["expr"] for annotation in BOARD["annotations"]["list"])


def named(expression: str) -> tuple[set[str], set[str]]:
    """The metrics in an expression, and the labels that it names."""
    labels = {label for inside in re.findall(r"\{([^{}]*)\}", expression) for label in re.findall(r"(\w+)[=!]", inside)}
    labels |= {label for by in re.findall(r"\bby \(([^()]*)\)", expression) for label in by.split(", ")}
    bare = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]|\bby \([^()]*\)", "", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare)) - FUNCTIONS - {"instance"}, labels


@pytest.fixture
async def exposed(tmp_path: Path) -> dict[str, set[str]]:
    """The samples of a bookie with all its services, and of a client with a log; with the labels of each."""
    cluster, registries = InProcess(tmp_path), [CollectorRegistry()]
    await cluster.start("ab")

    def recovery(registry: CollectorRegistry, appended: Callable[[], int]) -> AutoRecovery:
        registries.append(registry)
        return AutoRecovery(RecoverySettings(), cluster.tree.session(), ROOT, runtime_here(), "c", registry, appended)

    node = cluster.new_node("c", mending=True, background_service=recovery)
    await node.start()
    cluster.nodes.append(node)
    client = await cluster.client()
    registries[0].register(client.metrics)
    log = await client.open_log("orders", create=True)
    await log.append(b"order")
    await log.close()
    found: dict[str, set[str]] = {}
    for registry in registries:
        for family in registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            for suffix in suffixes:
                found[family.name + suffix] = set()
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    await cluster.stop()
    return found


async def test_each_metric_exists_with_the_labels_that_an_expression_names(exposed: dict[str, set[str]]) -> None:
    unlabelled = {
        "bkpy_client_consumer_lag_seconds",
        "bkpy_client_consumer_lag_entries",
    }  # no consumer has been measured
    for expression in expressions():
        metrics, labels = named(expression)
        assert metrics, expression
        assert metrics <= exposed.keys() | OF_PROMETHEUS, expression
        if not metrics & (unlabelled | OF_PROMETHEUS):
            have = {"instance", *(label for metric in metrics for label in exposed[metric])}
            assert labels <= have, expression


async def test_each_metric_of_an_alarm_exists(exposed: dict[str, set[str]]) -> None:
    of_tls = {"bkpy_bookie_certificate_end_seconds"}  # which this bookie doesn't have
    assert set(re.findall(r"\bbkpy_\w+", RULES)) - of_tls <= exposed.keys()


def test_the_dashboard_is_what_grafana_takes() -> None:
    jsonschema.validate(BOARD, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_a_schema_that_takes_anything_would_prove_nothing() -> None:
    for broken in ({**BOARD, "panels": []}, {**BOARD, "schemaVersion": "38"}, {**BOARD, "uid": "a b"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA, cls=jsonschema.Draft202012Validator)


# Of Prometheus as a data source, whose fields of annotations and variables Grafana's types leave open.
OF_DATA_SOURCE = {"/annotations/list/0/step", "/annotations/list/0/titleFormat", "/templating/list/1/definition"}


@pytest.mark.thorough
def test_each_field_and_value_is_one_of_grafanas_own_types() -> None:
    """Grafana's types for Python, which Grafana Labs makes from the schemas of its dashboards and panels."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()

    def flaws(board: dict[str, Any]) -> list[str]:
        read = Dashboard.from_json(board)
        return [*missing(board, json.loads(JSONEncoder().encode(read))), *mistyped(read)]

    assert set(flaws(BOARD)) == OF_DATA_SOURCE
    panel = {**BOARD["panels"][1], "titel": "a field that nobody has"}
    assert "/panels/1/titel" in flaws({**BOARD, "panels": [BOARD["panels"][0], panel]})
    assert {"/schema_version", "/graph_tooltip"} <= set(flaws({**BOARD, "schemaVersion": "38", "graphTooltip": 7}))


def missing(given: Any, read: Any, path: str = "") -> Iterator[str]:
    """What of a JSON value is not, or differs, in another."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            yield from missing(value, read[key], f"{path}/{key}") if key in read else [f"{path}/{key}"]
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for i, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from missing(one, other, f"{path}/{i}")
    elif given != read:
        yield path


def mistyped(value: Any, path: str = "") -> Iterator[str]:
    """The attributes below an object that are not of the type that its class declares."""
    for name, hint in typing.get_type_hints(type(value)).items():
        yield from misfits(getattr(value, name), hint, f"{path}/{name}")


def misfits(value: Any, hint: Any, path: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return
    if origin in (typing.Union, types.UnionType):
        if not any(next(misfits(value, one, path), None) is None for one in arguments):
            yield path
    elif origin is typing.Literal:
        if value not in arguments:
            yield path
    elif origin is list:
        if not isinstance(value, list):
            yield path
            return
        for i, one in enumerate(value):
            yield from misfits(one, arguments[0], f"{path}/{i}")
    elif origin is dict:
        if not isinstance(value, dict):
            yield path
            return
        for key, one in value.items():
            yield from misfits(one, arguments[1], f"{path}/{key}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            yield path
    elif hint is float:
        if type(value) not in (int, float):
            yield path
    elif hint in (int, str, bool, type(None)):
        if type(value) is not hint:
            yield path
    elif not isinstance(value, hint):
        yield path
    elif type(value).__module__.startswith("grafana_foundation_sdk"):
        yield from mistyped(value, path)


def test_rows_are_those_that_were_asked_for_and_no_panel_lies_on_another() -> None:
    assert [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"] == [
        "Clients", "Bookies", "Storage", "Healing", "Logs",
    ]  # fmt: skip
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_variables_that_expressions_name_are_there() -> None:
    variables = {variable["name"] for variable in BOARD["templating"]["list"]} | {"__rate_interval"}
    assert {name for text in expressions() for name in re.findall(r"\$\{?(\w+)", text)} <= variables
