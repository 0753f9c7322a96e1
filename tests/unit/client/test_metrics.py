"""A client's metrics: what they count, that they name every bookie and log, and what an unused one costs."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.hooks import pool_of
from tests.in_process import InProcess

import bkpy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()


class Page:
    """What Prometheus gets of a client."""

    def __init__(self, client: bkpy.Client) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(client.metrics)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"bkpy_client_{name}", labels)

    def labels(self, name: str, label: str) -> set[str]:
        families = list(self.registry.collect())
        return {sample.labels[label] for family in families for sample in family.samples if sample.name.endswith(name)}


async def test_appends_are_counted_with_those_of_ended_writers(cluster: InProcess) -> None:
    client = await cluster.client()
    first = await client.create_ledger()
    await first.append_batch([b"12345"] * 10)
    await first.close()
    page = Page(client)
    second = await client.create_ledger()
    await second.append(b"123")
    assert (page("appends_total"), page("append_bytes_total"), page("writers")) == (11, 53, 1)
    await second.close()
    await second.close()
    assert (page("appends_total"), page("append_bytes_total"), page("writers")) == (11, 53, 0)
    assert page("failed_appends_total") == 0


async def test_each_request_is_observed_once_at_each_bookie(cluster: InProcess) -> None:
    client = await cluster.client()
    page = Page(client)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append_batch([b"x" * 100] * 1000)  # one request
    assert page("append_seconds_count") == 1
    for bookie in writer.ensemble:
        assert page("request_seconds_count", bookie=bookie, operation="add") == 1
        assert page("request_bytes_total", bookie=bookie, operation="add") > 100_000  # type: ignore[operator]
        assert page("bookie_up", bookie=bookie) == page("connections_total", bookie=bookie) == 1
        assert page("in_flight_bytes", bookie=bookie) == 0
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert len([entry async for entry in reader.read()]) == 1000
    reads = [page("request_bytes_total", bookie=bookie, operation="read") or 0.0 for bookie in writer.ensemble]
    assert sum(reads) > 100_000
    assert page("failed_requests_total", bookie=writer.ensemble[0]) == 0


async def test_a_change_of_the_ensemble_is_counted_and_its_time_is_in_the_appends(cluster: InProcess) -> None:
    client = await cluster.client(add_timeout_s=2.0)
    page = Page(client)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"before")
    (lost, *_), before = writer.ensemble, set(writer.ensemble)
    cluster.hang(lost)
    await writer.append(b"after")
    (new,) = set(writer.ensemble) - before
    assert page("ensemble_changes_total", bookie=lost) == 1
    assert page("ensemble_changes_total", bookie=new) == 0
    assert page("resent_batches_total", bookie=new) == 1
    assert page("failed_requests_total", bookie=lost) == 1
    assert page("append_seconds_count") == 2
    assert page("append_seconds_sum") == pytest.approx(2.0, abs=0.5)
    assert page("append_seconds_bucket", le="1.0") == 1
    await writer.close()


async def test_appends_that_fail_are_counted_apart(cluster: InProcess) -> None:
    client = await cluster.client(no_bookies_timeout_s=0.5, add_timeout_s=0.5)
    page = Page(client)
    writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4)
    await writer.append(b"before")
    for name in "abcd":
        cluster.kill(name)
        cluster.refuse(name)
    with pytest.raises(bkpy.BookKeeperError):
        await writer.append_batch([b"x"] * 7)
    assert (page("appends_total"), page("failed_appends_total")) == (1, 7)
    writer.abandon()
    assert (page("appends_total"), page("failed_appends_total")) == (1, 7)


async def test_logs_have_counts_of_their_own(cluster: InProcess) -> None:
    client = await cluster.client()
    page = Page(client)
    orders = await client.open_log("orders", create=True, roll_entries=3, **ONE)
    for _ in range(10):
        await orders.append(b"order")
    bills = await client.open_log("bills", create=True, producer="shop", **ONE)
    await bills.append(b"bill", sequence=0)
    assert page("log_appended_entries_total", log="orders") == 10
    assert page("log_appended_bytes_total", log="orders") == 50
    assert page("log_appended_bytes_total", log="bills") == 4  # without stamps and numbers
    assert page("log_read_entries_total", log="orders") == 0
    async with await client.read_log("orders") as reader:
        await reader.refresh(confirmed=orders.last_acknowledged or 0)
        assert len([entry async for entry in reader.read()]) == 10
        async with aclosing(reader.tail(4)) as tail:
            assert [(await anext(tail)).position for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    assert page("log_read_entries_total", log="orders") == 16
    assert page("log_read_bytes_total", log="orders") == 80
    assert page("appends_total") == 11
    await orders.close()
    await bills.close()
    assert page("log_appended_entries_total", log="orders") == 10


async def test_no_more_logs_are_named_than_allowed(cluster: InProcess) -> None:
    client = await cluster.client(metrics_logs_max=2)
    page = Page(client)
    for number in range(4):
        async with await client.open_log(f"log-{number}", create=True, **ONE) as log:
            await log.append(b"x")
    assert page.labels("log_appended_entries_total", "log") == {"log-0", "log-1", "(others)"}
    assert page("log_appended_entries_total", log="(others)") == 2


async def test_a_writer_measures_the_lags_of_all_consumers_of_its_log(cluster: InProcess) -> None:
    client, other = await cluster.client(metrics_lag_interval_s=5.0), await cluster.client()
    page = Page(client)
    log = await client.open_log("orders", create=True, **ONE)
    await log.append_batch([b"order"] * 10)
    async with await other.read_log("orders") as reader:
        mail = await reader.consumer("mail", create=True)
        await mail.commit(4)
    await asyncio.sleep(10.0)
    of_mail = {"log": "orders", "consumer": "mail"}  # nobody runs it
    assert page("consumer_lag_entries", **of_mail) == 6
    assert page("consumer_lag_bytes", **of_mail) == 30
    assert page("consumer_lag_seconds", **of_mail) == pytest.approx(10.0, abs=5.5)
    assert page("log_read_entries_total", log="orders") == 0
    await log.close()
    await asyncio.sleep(10.0)
    assert page("consumer_lag_entries", **of_mail) is None  # nobody measures it here


async def test_a_client_measures_its_own_consumers_and_moves_no_reader(cluster: InProcess) -> None:
    writing, client = await cluster.client(), await cluster.client(metrics_lag_interval_s=5.0)
    page = Page(client)
    async with await writing.open_log("orders", create=True, **ONE) as log:
        await log.append(b"order")
        reader = await client.read_log("orders")
        mail = await reader.consumer("mail", create=True)
        known = reader.next_position
        await log.append_batch([b"order"] * 5)
        await asyncio.sleep(10.0)
        assert page("consumer_lag_entries", log="orders", consumer="mail") == 6
        assert reader.next_position == known
        await mail.commit(1)
        await asyncio.sleep(10.0)
        assert page("consumer_lag_entries", log="orders", consumer="mail") == 5
        await mail.close()
        await asyncio.sleep(10.0)
        assert page("consumer_lag_entries", log="orders", consumer="mail") is None


async def test_the_consumers_furthest_behind_are_named(cluster: InProcess) -> None:
    client = await cluster.client(metrics_lag_interval_s=5.0, metrics_consumers_max=2)
    page = Page(client)
    log = await client.open_log("orders", create=True, **ONE)
    for number in range(4):
        await log.append(b"order")
        await asyncio.sleep(1.0)
        await log.consumer(f"c{number}", position=number, create=True)
    await asyncio.sleep(10.0)
    assert page.labels("consumer_lag_seconds", "consumer") == {"c0", "c1"}
    await log.close()


@pytest.mark.thorough
async def test_a_lag_that_cannot_be_measured_is_left_out_until_it_can(cluster: InProcess) -> None:
    client = await cluster.client(metrics_lag_interval_s=5.0, read_timeout_s=1.0)
    page = Page(client)
    log = await client.open_log("orders", create=True, ensemble_size=4, write_quorum=4, ack_quorum=4)
    await log.append(b"order")
    await log.consumer("mail", create=True)
    await asyncio.sleep(10.0)
    assert page("consumer_lag_entries", log="orders", consumer="mail") == 1
    for name in "abcd":
        cluster.refuse(name)
        for connection in cluster.connections(name):
            connection.abort()
    await asyncio.sleep(60.0)
    assert page("consumer_lag_entries", log="orders", consumer="mail") is None
    for name in "abcd":
        cluster.admit(name)
    await asyncio.sleep(60.0)
    assert page("consumer_lag_entries", log="orders", consumer="mail") == 1
    log.abandon()


async def test_a_client_without_metrics_observes_nothing_and_measures_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    page = Page(client)
    assert page("append_seconds_count") == 0
    assert page.labels("request_seconds_count", "operation") == set()
    assert page("appends_total") == 1


async def test_a_closed_client_still_shows_its_counts_and_makes_none_anew(cluster: InProcess) -> None:
    client = await cluster.client()
    page = Page(client)
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    await client.close()
    assert page("appends_total") == 1
    other = await cluster.client()
    await other.close()
    with pytest.raises(bkpy.ClientClosedError):
        _ = other.metrics


@pytest.mark.thorough
@pytest.mark.real("threads")
async def test_another_thread_may_scrape_while_the_client_works(tmp_path: Path) -> None:
    """As the server of `prometheus_client` does."""
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    client = await cluster.client()
    page, stop, errors = Page(client), threading.Event(), []

    def scrape() -> None:
        try:
            while not stop.is_set():
                generate_latest(page.registry)
        except BaseException as e:  # raised below
            errors.append(e)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for _ in range(60):
            writer = await client.create_ledger(**ONE)
            await writer.append(b"x")
            await writer.close()
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    assert not errors
    assert page("appends_total") == 60
    assert pool_of(client).channels
    await cluster.stop()


async def test_the_page_of_metrics_names_each_and_no_other(cluster: InProcess) -> None:
    page = Page(await cluster.client())
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    have = {f"{family.name}{kinds[family.type]}" for family in page.registry.collect()}
    text = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    rows = text.split("\n## Of a client\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`bkpy_client_[^|]+) \|", rows, re.MULTILINE)
    names = re.findall(r"`(\w+)(?:\{[\w, ]+\})?`", ", ".join(cells))
    assert sorted(name if name.startswith("bkpy") else f"bkpy_client{name}" for name in names) == sorted(have)
