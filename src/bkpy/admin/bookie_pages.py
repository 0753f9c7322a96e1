"""What bookies report on their HTTP pages, read by programs that look at a whole cluster.

Invariant: a page counts only if it says that it is the bookie's own: on one host several bookies may use each other's
ports one after the other, and on several hosts all use the same.
"""

from __future__ import annotations

import asyncio
import email.utils
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bkpy.errors import BookieUnavailableError
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.runtime.interfaces import Clock
    from bkpy.runtime.tls import TlsContext

_LOOPBACK = "127.0.0.1"


class BookieActivity(NamedTuple):
    """What a bookie says of the ledgers that it stores.

    `busiest`: ledger id, entries and bytes that it stores of it in a second. `fences`: the latest, as ledger id and
    time since the epoch by its clock.
    """

    busiest: tuple[tuple[int, float, float], ...]
    fences: tuple[tuple[int, float], ...]


class PageReport(NamedTuple):
    """What a bookie's pages say now. `skew_s`: how far its clock is ahead of this machine's, to a second or so.

    `metrics`: by name, and in it by the values of the labels, sorted by the labels' names. `activity` is None unless it
    was asked for, and from a bookie that doesn't report it.
    """

    ready: bool
    why: str | None
    skew_s: float
    metrics: Mapping[str, Mapping[tuple[str, ...], float]]
    activity: BookieActivity | None = None

    def value(self, name: str, *labels: str) -> float:
        """A metric's value; 0 if the bookie doesn't report it."""
        return self.metrics.get(name, {}).get(labels, 0.0)


class ClusterPages:
    """Reads pages. `async with ClusterPages(clock, settings) as pages: found = await pages.read(infos)`."""

    def __init__(self, clock: Clock, settings: RecoverySettings, tls: TlsContext | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._tls = tls
        self._places: dict[str, str] = {}  # by bookie, where its pages were found
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._settings.pages_timeout_s)
        connector = aiohttp.TCPConnector(limit=self._settings.pages_at_once)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def read(self, infos: Iterable[BookieInfo], *, activity: bool = False) -> dict[str, PageReport | None]:
        """By bookie, what its pages say; None if they can't be reached from here, or if it has none.

        With `activity`, also which ledgers it stores.
        """
        those = list(infos)
        found = await asyncio.gather(*(self._read(info, activity) for info in those))
        return {info.bookie_id: one for info, one in zip(those, found, strict=True)}

    async def _read(self, info: BookieInfo, activity: bool) -> PageReport | None:
        if not info.metrics_port or (info.metrics_tls and self._tls is None):
            return None
        # By default a bookie serves its pages on its own machine alone, and this program may run there.
        host = info.address.rpartition(":")[0]
        places = dict.fromkeys((f"{_LOOPBACK}:{info.metrics_port}", f"{host}:{info.metrics_port}"))
        known = self._places.get(info.bookie_id)
        for place in [known] if known in places else places:
            assert place is not None
            try:
                report = await self._read_at(place, info, activity)
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):  # or it is no bookie's page
                report = None
            if report is not None:
                self._places[info.bookie_id] = place
                return report
        self._places.pop(info.bookie_id, None)
        return None

    async def post(self, info: BookieInfo, page: str) -> bool:
        """Start the work that a bookie's page is for; False if that is under way. The bookie must have been read.

        Raises `BookieUnavailableError` if its pages can't be reached from here, or refuse.
        """
        assert self._session is not None
        place = self._places.get(info.bookie_id)
        if place is None:
            raise BookieUnavailableError("its pages can't be reached from here", bookie=info.bookie_id)
        url, secured = self._secured(place, page, info)
        try:
            async with self._session.post(url, json={}, headers={"X-Bkpy": "1"}, **secured) as response:
                if response.status in (200, 409):
                    return response.status == 200
                answer = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BookieUnavailableError(f"its page gives no answer: {error}", bookie=info.bookie_id) from error
        raise BookieUnavailableError(f"its page refuses: {answer[:200]}", bookie=info.bookie_id, retriable=False)

    def _secured(self, place: str, page: str, info: BookieInfo) -> tuple[str, dict[str, Any]]:
        if not info.metrics_tls:
            return f"http://{place}{page}", {}
        return f"https://{place}{page}", {"ssl": self._tls, "server_hostname": info.address.rpartition(":")[0]}

    async def _read_at(self, place: str, info: BookieInfo, activity: bool) -> PageReport | None:
        asked = self._clock.time()
        text, headers = await self._get(place, "/readyz", info)
        health = parsed(text.encode())
        if health["bookie_id"] != info.bookie_id:
            return None
        middle = (asked + self._clock.time()) / 2
        date = headers.get("Date")
        # The header has whole seconds, cut off.
        skew_s = 0.0 if date is None else email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - middle
        metrics, _ = await self._get(place, "/metrics", info)
        report = PageReport(bool(health["ready"]), health["why"], skew_s, _parsed(metrics))
        return report._replace(activity=await self._activity(place, info)) if activity else report

    async def _activity(self, place: str, info: BookieInfo) -> BookieActivity | None:
        text, _ = await self._get(place, "/activity", info)
        try:
            found = parsed(text.encode())
            return BookieActivity(
                tuple((int(ledger_id), float(entries), float(size)) for ledger_id, entries, size in found["busiest"]),
                tuple((int(ledger_id), float(time_s)) for ledger_id, time_s in found["fences"]),
            )
        except (ValueError, KeyError, TypeError):  # it starts, or is of a version without the page
            return None

    async def _get(self, place: str, page: str, info: BookieInfo) -> tuple[str, Mapping[str, str]]:
        assert self._session is not None
        url, secured = self._secured(place, page, info)
        async with self._session.get(url, **secured) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > self._settings.page_bytes_max:
                    raise ValueError(f"the page has more than {self._settings.page_bytes_max} bytes")
            return body.decode(), response.headers


def _parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels: dict[str, Any] = sample.labels
            found.setdefault(sample.name, {})[tuple(labels[name] for name in sorted(labels))] = sample.value
    return found
