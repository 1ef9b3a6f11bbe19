"""Looks at the dashboard in Chromium: `python browsing.py URL FOLDER CHROMIUM KIND`, in an environment with Playwright.

KIND: `run` (a run that goes on), `ended` (one that does not), or `cluster`. It writes screenshots into FOLDER, and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PAGES = {
    "run": "Step time",
    "step": "Critical path",
    "memory": "Free memory of each host",
    "workers": "Workers",
    "actors": "Actors & shards",
    "events": "Events",
    "checkpoints": "Go on from step",
    "logs": "Logs",
    "health": "Processes",
}


class Visit:
    def __init__(self, page: Page, folder: Path, kind: str) -> None:
        self.page, self.folder, self.kind = page, folder, kind
        self.out: dict = {"console": [], "foreign": [], "shown": []}
        page.on("console", lambda message: self.out["console"].append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.out["console"].append(f"error: {error}"))
        page.on("request", self.requested)
        self.host = ""

    def requested(self, request) -> None:
        url = request.url
        if not url.startswith((self.host or "none", "file:", "data:", "blob:")):
            self.out["foreign"].append(url)

    def shot(self, name: str) -> None:
        self.page.mouse.move(2, 2)
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.page.screenshot(path=self.folder / f"{self.kind}-{name}.png", full_page=True)

    def key(self, key: str) -> None:
        self.page.keyboard.press(key)

    def open(self, url: str) -> None:
        self.host = url.split("/#")[0] if url.startswith("http") else ""
        self.page.goto(url)
        self.page.wait_for_selector("nav.side")
        # The token leaves the address bar.
        assert "token" not in self.page.url, self.page.url
        paints = "JSON.stringify(performance.getEntriesByType('paint').map((e) => [e.name, Math.round(e.startTime)]))"
        self.out["paint_ms"] = dict(json.loads(self.page.evaluate(paints)))

    def pages(self) -> None:
        for number, (name, text) in enumerate(PAGES.items(), 1):
            self.key(str(number))
            self.page.wait_for_selector(f"main >> text={text}")
            self.page.wait_for_selector(".waiting", state="detached")
            self.shot(name)
            self.out["shown"].append(name)

    def charts(self) -> None:
        """A chart shows a step's values under the pointer, and zooms."""
        self.key("1")
        plot = self.page.locator(".chart").first
        plot.wait_for()
        box = plot.bounding_box()
        assert box
        at = (box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5)
        self.page.mouse.move(*at)
        self.out["tip"] = self.page.locator(".tip:visible").first.inner_text()
        self.page.mouse.down()
        self.page.mouse.move(at[0] + 80, at[1], steps=4)
        self.page.mouse.up()
        self.page.wait_for_selector("text=show all")
        self.shot("zoomed")
        self.page.click("text=show all")

    def step(self) -> None:
        """The step before, lanes by kind, and the trace."""
        self.key("2")
        title = self.page.locator("main h2").first
        title.wait_for()
        self.page.click("button:has-text('by kind')")
        before = title.inner_text()
        self.key("ArrowLeft")
        self.page.wait_for_function("(old) => document.querySelector('main h2').innerText !== old", arg=before)
        self.shot("step-by-kind")
        with self.page.expect_download() as download:
            self.page.click("button:has-text('trace')")
        trace = json.loads(Path(download.value.path()).read_text())
        self.out["trace"] = sorted({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"})

    def dark(self) -> None:
        self.key("t")
        assert self.page.evaluate("document.documentElement.dataset.theme") == "dark"
        for key, name in (("1", "run"), ("2", "step"), ("4", "workers")):
            self.key(key)
            self.page.wait_for_selector(f"main >> text={PAGES[name]}")
            self.shot(f"dark-{name}")
        self.key("t")
        self.key("?")
        self.page.wait_for_selector("[role=dialog]")
        self.shot("keys")
        self.key("Escape")

    def grows(self) -> None:
        """A run that goes on shows its later steps without a reload."""
        self.key("1")
        tile = "() => Number(document.querySelector('.tile strong').innerText)"
        self.page.wait_for_function(f"() => ({tile})() > 0")
        first = self.page.evaluate(tile)
        self.page.wait_for_function(f"(first) => ({tile})() > first", arg=first)

    def actors(self) -> None:
        self.key("5")
        self.page.wait_for_selector("td >> text=Counter")
        self.shot("actors")
        self.page.select_option("select[aria-label=State]", "pending")
        self.page.wait_for_selector("tbody tr:has-text('pending')")
        self.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        self.shot("actors-pending")
        self.out["why"] = self.page.locator("td .why").first.inner_text()
        for name in ("nodes", "jobs", "workers"):
            self.page.click(f".tabs button:has-text('{name}')")
            self.page.wait_for_selector("tbody tr")
            self.shot(name)
        self.key("8")
        self.page.wait_for_selector("pre.log")
        self.out["log"] = self.page.locator("pre.log").inner_text()
        self.shot("logs")


def main() -> None:
    url, folder, chromium, kind = sys.argv[1:5]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light", accept_downloads=True).new_page()
        page.set_default_timeout(60_000)
        visit = Visit(page, Path(folder), kind)
        visit.open(url)
        if kind == "cluster":
            visit.page.wait_for_selector("main >> text=Runs")
            visit.shot("runs")
            visit.actors()
        else:
            visit.pages()
            visit.out["verdict"] = page.locator(".verdict .sentence").inner_text()
            visit.charts()
            visit.step()
            visit.dark()
        if kind == "run":
            visit.grows()
        visit.out["title"] = page.title()
        print(json.dumps(visit.out))
        browser.close()


if __name__ == "__main__":
    main()
