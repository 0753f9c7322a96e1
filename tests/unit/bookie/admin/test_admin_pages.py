"""Who may give a bookie commands over HTTP: what a browser sends for another site's page, and what a proxy hands on."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest
from tests.in_process import InProcess

from bkpy.runtime.http_hosts import host_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.real("HTTP needs sockets of the kernel")

COMMAND = {"X-Bkpy": "1"}
PAGES = ("/gc", "/scrub", "/reload")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", metrics_port=0)
    yield local
    await local.stop()


async def ask(
    cluster: InProcess, method: str, page: str, headers: dict[str, str] | None = None, data: str | None = None
) -> tuple[int, str]:
    url = f"http://127.0.0.1:{cluster.node('a').metrics_port}{page}"
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers, data=data) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("page", PAGES)
async def test_commands_need_what_no_web_page_sends_unasked(cluster: InProcess, page: str) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, why = await ask(cluster, "POST", page, {"Content-Type": content_type}, "")
        assert status == 415
        assert "X-Bkpy" in why
    assert (await ask(cluster, "POST", page))[0] == 415
    assert (await ask(cluster, "POST", page, COMMAND))[0] in (200, 409)
    assert (await ask(cluster, "POST", page, {"Content-Type": "application/json"}, "{}"))[0] in (200, 409)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.evil.example"},
        {"Host": "rebound.evil.example:8000"},
        {"X-Forwarded-For": "10.1.1.1"},
        {"Forwarded": "for=10.1.1.1"},
        {"Via": "1.1 proxy"},
    ],
)
async def test_other_sites_rebound_names_and_proxies_are_refused(cluster: InProcess, headers: dict[str, str]) -> None:
    for method, page in (("GET", "/gc"), ("GET", "/scrub"), *(("POST", page) for page in PAGES)):
        assert (await ask(cluster, method, page, {**COMMAND, **headers}))[0] == 403
    for page in ("/metrics", "/healthz", "/readyz"):  # probes and Prometheus come by whatever name
        assert (await ask(cluster, "GET", page, headers))[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8000", "[::1]:8000", "10.0.0.1:80", "$own:8000"])
async def test_a_bookie_knows_its_own_names(cluster: InProcess, host: str) -> None:
    host = host.replace("$own", socket.gethostname())
    assert (await ask(cluster, "GET", "/gc", {"Host": host}))[0] == 200


async def test_with_commands_from_all_any_name_will_do_but_no_web_page(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a", metrics_port=0, admin_clients="all")
    assert (await ask(cluster, "POST", "/gc", {**COMMAND, "Host": "bookie-0.bookies.svc", "Via": "1.1 x"}))[0] == 200
    assert (await ask(cluster, "POST", "/gc", {**COMMAND, "Origin": "http://evil.example"}))[0] == 403
    await cluster.stop()


@pytest.mark.parametrize(
    ("place", "host"),
    [("a:80", "a"), ("A.b.", "a.b"), ("[::1]:80", "::1"), ("::1", "::1"), ("1.2.3.4:5", "1.2.3.4"), ("", "")],
)
def test_the_host_of_a_place(place: str, host: str) -> None:
    assert host_of(place) == host
