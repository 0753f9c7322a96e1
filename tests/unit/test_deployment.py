"""What people deploy bkpy with names settings, pages and services that there are."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bkpy.config.bookie import BookieSettings
from bkpy.config.loading import load_bookie_settings

SOURCE = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((SOURCE / "docker-compose.yml").read_text())
KUBERNETES = [*yaml.safe_load_all((SOURCE / "examples/kubernetes/bookies.yaml").read_text())]
IMAGE_VARIABLES = dict(re.findall(r"(BKPY_\w+)=(\S+)", (SOURCE / "Dockerfile").read_text()))
BOOKIES = [name for name in COMPOSE["services"] if name.startswith("bookie")]


@pytest.mark.parametrize("name", BOOKIES)
def test_a_bookie_of_compose_has_settings_that_are_accepted(name: str) -> None:
    settings = load_bookie_settings(None, {**IMAGE_VARIABLES, **COMPOSE["services"][name]["environment"]}, {})
    assert settings.bookie_id == name
    assert settings.advertised_address == f"{name}:3181"
    mounted = {volume.partition(":")[2] for volume in COMPOSE["services"][name]["volumes"]}
    assert mounted == {*settings.journal_directories, *settings.ledger_directories}


def test_to_run_a_client_starts_no_bookie() -> None:
    assert "depends_on" not in COMPOSE["services"]["client"]


@pytest.mark.parametrize("name", BOOKIES)
def test_a_bookie_stops_before_zookeeper_and_whenever_it_is_told_to(name: str) -> None:
    """Though 1.29 looks at what runs alone, so not at `init`, and a first process heeds no signal by default."""
    service = COMPOSE["services"][name]
    assert service["depends_on"]["zookeeper"] == {"condition": "service_healthy"}
    assert service["init"] is True


def test_prometheus_asks_every_bookie() -> None:
    config = yaml.safe_load((SOURCE / "deploy/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    (found,) = job["dns_sd_configs"]
    port = IMAGE_VARIABLES["BKPY_METRICS_PORT"]
    assert [*static["targets"], *(f"{name}:{found['port']}" for name in found["names"])] == [
        f"{name}:{port}" for name in BOOKIES
    ]
    assert [name for name in BOOKIES if "profiles" in COMPOSE["services"][name]] == found["names"]


def test_the_alarms_are_those_of_the_documentation() -> None:
    (file,) = yaml.safe_load((SOURCE / "deploy/prometheus.yml").read_text())["rule_files"]
    assert f"./deploy/{file}:/etc/prometheus/{file}:ro" in COMPOSE["services"]["prometheus"]["volumes"]
    (group,) = yaml.safe_load((SOURCE / "deploy" / file).read_text())["groups"]
    page = (SOURCE / "docs/how-to/alarms.md").read_text()
    found = re.findall(r"^## (\w+)\n\n`([^`]+)`(?: for (\d+) (m|h)\w+)?, (\w+)\n\n(?=[A-Z`])", page, re.MULTILINE)
    alarms = [(rule["alert"], rule["expr"], rule.get("for"), rule["labels"]["severity"]) for rule in group["rules"]]
    assert alarms == [(name, expression, time + unit or None, how) for name, expression, time, unit, how in found]
    assert len(alarms) == page.count("\n## ")
    assert len({name for name, *_ in alarms}) == len(alarms)
    for rule in group["rules"]:
        assert (
            rule["annotations"]["runbook"] == f"docs/how-to/alarms.md#{rule['alert'].lower()}"
        )  # the heading's anchor
        assert rule["annotations"]["summary"]
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("resource", KUBERNETES, ids=lambda resource: resource["kind"])
def test_the_resources_of_kubernetes_are_what_its_schemas_allow(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_a_bookie_of_kubernetes_has_settings_that_are_accepted() -> None:
    (bookies,) = (resource for resource in KUBERNETES if resource["kind"] == "StatefulSet")
    (container,) = bookies["spec"]["template"]["spec"]["containers"]
    values = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    settings = load_bookie_settings(None, {**IMAGE_VARIABLES, **_named(values, "bookie-0")}, {})
    assert settings.bookie_id == "bookie-0"
    assert settings.advertised_address == "bookie-0.bookies.space.svc.cluster.local:3181"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {*settings.journal_directories, *settings.ledger_directories}
    assert {port["name"]: str(port["containerPort"]) for port in container["ports"]} == {
        "bookie": IMAGE_VARIABLES["BKPY_LISTEN"].rpartition(":")[2],
        "metrics": IMAGE_VARIABLES["BKPY_METRICS_PORT"],
    }


def _named(values: dict[str, str], pod: str) -> dict[str, str]:
    return {
        name: value.replace("$(POD_NAME)", pod).replace("$(POD_NAMESPACE)", "space") for name, value in values.items()
    }


def test_a_unit_of_systemd_gives_a_bookie_the_time_to_stop() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(SOURCE / "deploy/systemd/bkpy-bookie.service")
    timeout_s = BookieSettings.model_fields["stop_timeout_s"].default
    assert float(unit["Service"]["TimeoutStopSec"]) >= 2 * timeout_s
    assert " bookie run " in unit["Service"]["ExecStart"]
