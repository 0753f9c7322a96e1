"""The dashboard in a real Chromium: it loads, shows a killed bookie and how its ledgers heal, by keyboard, and narrow.

The pictures of all views, light and dark, wide and narrow, are left in the test's directory.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import async_playwright

import bkpy
from bkpy.cli.dashboard import shown_at
from bkpy.local import LocalCluster
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.exhaustive]

DEADLINE_S = 300.0  # beside other work, a cluster heals and a browser draws slowly
TOKEN = "a token of sixteen"
VIEWS = ("overview", "bookies", "ledgers", "logs", "healing", "events")
SETTINGS: dict[str, Any] = {
    "metrics_port": 0,
    "session_timeout_s": 2.0,
    "lost_bookie_settle_s": 0.5,
    "lost_bookie_recovery_delay_s": 2.0,
    "open_ledger_grace_s": 1.0,
}
MARKUP = b"<script>document.title = 'owned'</script><b>bold</b>"

# Texts whose contrast to what is behind them is under the 4.5 that WCAG asks for, and texts that are cut or overlap.
FLAWS = """() => {
  const found = [];
  const parts = (colour) => { const n = colour.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = c[i] / 255; return sum + weight * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, noscript, option, dialog:not([open]), .skip, thead")) continue;
    const a = light(parts(getComputedStyle(element).color)), b = light(behind(element));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${node.data}: contrast ${contrast.toFixed(2)}`);
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) texts.push([node, box]);
    const right = range.getBoundingClientRect().right;
    if (right > innerWidth && !element.closest(".scroll")) found.push(`${node.data}: cut`);
  }
  texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (one !== other && wide > 1 && high > 3) found.push(`${one.data} overlaps ${other.data}`);
  }));
  return found;
}"""


class Browser:
    """A page of Chromium on the dashboard, and everything that it complained of or asked elsewhere for."""

    def __init__(self, page: Page, where: str) -> None:
        self.page = page
        self.where = where
        self.complaints: list[str] = []
        page.on("console", lambda message: self._complained(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _complained(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.where, "data:")):
            self.complaints.append(f"it asked for {url}")

    async def text(self) -> str:
        return await self.page.inner_text("body")

    async def shows(self, *wanted: str) -> None:
        async def there() -> list[str]:
            text = await self.text()
            return [one for one in wanted if one not in text]

        await eventually(
            there, f"the page shows {wanted}", until=lambda missing: not missing, pause_s=0.1, deadline_s=DEADLINE_S
        )

    async def open(self, view: str) -> None:
        await self.page.keyboard.press(str(VIEWS.index(view) + 1))
        await self.page.wait_for_selector(f'nav a[aria-current][href="#{view}"]')
        await self.page.wait_for_selector("main .card")

    async def pictures(self, path: Path) -> None:
        """Of what is open, light and dark; asserts that both can be read."""
        for theme in ("light", "dark"):
            await self.page.screenshot(path=path.with_name(f"{path.name}-{theme}.png"), full_page=True)
            assert await self.page.evaluate(FLAWS) == [], (path.name, theme)
            await self.page.keyboard.press("t")


@contextlib.asynccontextmanager
async def browsing(where: str) -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium is not None, "these tests need Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="light")
        page.set_default_timeout(DEADLINE_S * 1000)
        try:
            yield Browser(page, where)
        finally:
            await browser.close()


async def test_a_bookie_is_killed_and_healed_in_view(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "cluster", 4, SETTINGS) as cluster:
        uri = cluster.connect_string
        async with (
            bkpy.connect(uri) as client,
            shown_at(uri, "127.0.0.1", 0, token=TOKEN) as where,
            browsing(where) as browser,
        ):
            page = browser.page
            log = await client.open_log("orders", create=True)
            for _ in range(8):
                writer = await client.create_ledger(custom_metadata={"note": MARKUP})
                await writer.append_batch([b"entry"] * 100)
                await writer.close()
            await page.goto(where)
            await browser.shows("4 of 4", "All is well.")

            # Every view, by keyboard, light and dark; text that somebody chose stays text.
            for view in VIEWS:
                await browser.open(view)
                await log.append(b"order")
                await browser.pictures(tmp_path / view)
            await what_somebody_does_with_it_stays(browser)
            await page.keyboard.press("/")
            await page.wait_for_selector("#search:focus")
            await page.keyboard.type(str(writer.ledger_id))
            await page.keyboard.press("Enter")
            await browser.shows(f"Ledger {writer.ledger_id}", MARKUP.decode())
            assert await page.title() != "owned"

            await browser.open("overview")
            await browser.shows("Busiest ledgers", "Busiest logs")
            victim = cluster.bookies[1]
            await victim.kill()
            await browser.shows(victim.id, "3 of 4")
            await browser.open("events")
            await browser.shows(f"bookie {victim.id} has gone", "under-replicated ledgers")
            await browser.open("healing")
            await browser.shows("lost, re-replicated")
            for view in VIEWS:
                await browser.open(view)
                await browser.pictures(tmp_path / f"{view}-healed")

            await drain_by_button(browser, cluster.bookies[0].id)

            await page.set_viewport_size({"width": 400, "height": 800})
            for view in VIEWS:
                await browser.open(view)
                await browser.pictures(tmp_path / f"{view}-narrow")
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= 400, f"{view} is {width} pixels wide"
            log.abandon()  # idle for longer than the grace of writers, it may have been recovered
            await cluster.zookeeper.kill()
            await browser.shows("The cluster can't be seen")
            await browser.pictures(tmp_path / "unseen")
            assert browser.complaints == []


async def what_somebody_does_with_it_stays(browser: Browser) -> None:
    """The page is drawn anew every two seconds: what is marked, pressed or scrolled to isn't."""
    page = browser.page
    await browser.open("bookies")
    await page.keyboard.press("Control+Home")
    await page.focus(".skip")
    await page.keyboard.press("Enter")
    assert await page.evaluate("[location.hash, document.activeElement.id]") == ["#bookies", "main"]
    cell = "main td[data-name=bookie]"
    drawn = "() => { globalThis.kept = document.querySelector('main .card'); }"
    anew = "() => globalThis.kept !== document.querySelector('main .card')"
    await page.evaluate(drawn)
    await page.set_viewport_size({"width": 700, "height": 800})
    await page.evaluate("document.querySelector('.scroll').scrollLeft = 50")
    await page.wait_for_function(anew)
    assert await page.evaluate("document.querySelector('.scroll').scrollLeft") == 50
    await page.set_viewport_size({"width": 1200, "height": 800})
    marks = f"getSelection().selectAllChildren(document.querySelector('{cell}'))"
    for keep, free in (
        (lambda: page.evaluate(marks), lambda: page.evaluate("getSelection().removeAllRanges()")),
        (lambda: press(page, cell), page.mouse.up),
    ):
        await keep()
        await page.evaluate(drawn)
        for _ in range(2):
            await page.wait_for_event("response", lambda response: response.url.endswith("/api/v1/bookies"))
        assert not await page.evaluate(anew)
        await free()
        await page.wait_for_function(anew)


async def press(page: Page, where: str) -> None:
    await page.hover(where)
    await page.mouse.down()


async def drain_by_button(browser: Browser, bookie_id: str) -> None:
    """An action needs the token, and a confirmation."""
    page = browser.page
    await browser.open("bookies")
    await page.click(f'button[aria-label="Drain {bookie_id}"]')
    await page.fill("#token", "not the token at all")
    await page.click("dialog button[type=submit]")
    await page.wait_for_selector("dialog p[role=alert]:not(:empty)")
    assert "token" in await page.inner_text("dialog")
    await page.keyboard.press("Escape")
    assert "draining" not in await browser.text()
    browser.complaints = [text for text in browser.complaints if "401" not in text]  # Chromium tells of each refusal
    await page.click(f'button[aria-label="Drain {bookie_id}"]')
    await page.fill("#token", TOKEN)
    await page.click("dialog button[type=submit]")
    await browser.shows("draining")
