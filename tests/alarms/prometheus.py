"""Prometheus of the tests' own on loopback, with the rules of deploy/, which wait for hardly anything."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from bkpy.local.process import free_port
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

RULES = Path(__file__).parents[2] / "deploy" / "alarms.yml"
DEADLINE_S = 120.0
_INTERVAL = "500ms"


def require() -> None:
    """Fail with what is missing and how to get it."""
    missing = [command for command in ("prometheus", "promtool") if shutil.which(command) is None]
    assert not missing, f"the tests of alarms need {' and '.join(missing)}: apt-get install prometheus"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


class Prometheus:
    """One that runs."""

    def __init__(self, directory: Path, port: int) -> None:
        self._targets = directory / "targets.json"
        self._url = f"http://127.0.0.1:{port}"

    def scrape(self, pages: Mapping[str, int]) -> None:
        """Ask these from now on: the ports of bookies' pages by their ids, as the job `bookies`."""
        groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {"bookie": name}} for name, port in pages.items()]
        fresh = self._targets.with_suffix(".new")
        fresh.write_text(json.dumps(groups))
        fresh.replace(self._targets)

    async def firing(self) -> set[str]:
        """The names of the alarms that fire now."""
        alerts = (await self._get("alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def value(self, query: str) -> float | None:
        """The value of the first series."""
        found = (await self._get("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None

    async def ready(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/-/ready") as response:
            return response.status == 200

    async def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{what}"
        async with aiohttp.ClientSession() as session, session.get(url, params=parameters) as response:
            return (await response.json())["data"]

    async def fires(self, *alarms: str) -> None:
        """Wait until all of these do."""
        await eventually(self.firing, f"{alarms} fire", until=set(alarms).issubset, pause_s=0.2, deadline_s=DEADLINE_S)

    async def clears(self) -> None:
        """Wait until none fires."""
        await eventually(
            self.firing, "no alarm fires", until=lambda alarms: not alarms, pause_s=0.2, deadline_s=DEADLINE_S
        )


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Prometheus]:
    """Prometheus, with its files in the directory, which it makes."""
    require()
    port = free_port()
    process = _start(directory, port)
    prometheus = Prometheus(directory, port)
    try:
        await eventually(prometheus.ready, "Prometheus is ready", pause_s=0.1, meanwhile=aiohttp.ClientError)
        yield prometheus
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _start(directory: Path, port: int) -> subprocess.Popen[bytes]:
    directory.mkdir()
    quick = [{**rule, "for": "1s"} if "for" in rule else rule for rule in rules()]
    (directory / "alarms.yml").write_text(yaml.safe_dump({"groups": [{"name": "bkpy", "rules": quick}]}))
    config = {
        "global": {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": ["alarms.yml"],
        "scrape_configs": [
            {"job_name": "bookies", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (directory / "targets.json").write_text("[]")
    command = (
        *("prometheus", f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    )
    with open(directory / "log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)
