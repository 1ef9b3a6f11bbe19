"""Looks at the dashboard in Chromium: `python browsing.py URL FOLDER CHROMIUM KIND [RUN]`, in an environment with Playwright.

KIND: `run` (a run that goes on), `ended` (one that does not), `empty`, `cluster`, `trains` (RUN, on the page of its cluster), or `gone`
(the server ends, whose pid is RUN); behind a dash it may say more. It writes screenshots into FOLDER, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
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
        self.out: dict = {"console": [], "foreign": [], "shown": [], "text": {}, "wide": []}
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

    def pages(self, **texts: str) -> None:
        """Each page by its key. ``texts``: they show that a page is there, and replace those of PAGES."""
        for number, (name, text) in enumerate(PAGES.items(), 1):
            self.key(str(number))
            self.page.wait_for_selector(f"main >> text={texts.get(name, text)}")
            self.page.wait_for_selector(".waiting", state="detached")
            self.shot(name)
            self.out["shown"].append(name)
            self.out["text"][name] = self.page.locator("main").inner_text()

    def narrow(self) -> None:
        """Nothing but a table or a chart is wider than a narrow window."""
        self.page.set_viewport_size({"width": 480, "height": 900})
        for number, (name, text) in enumerate(PAGES.items(), 1):
            if name in ("actors", "logs"):
                continue
            self.key(str(number))
            self.page.wait_for_selector(f"main >> text={text}")
            self.shot(f"narrow-{name}")
            if self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                self.out["wide"].append(name)
        self.page.set_viewport_size({"width": 1360, "height": 900})

    def tab(self) -> None:
        """The keyboard reaches the link beside the verdict, and follows it."""
        self.key("1")
        self.page.locator(".verdict a").first.focus()
        self.shot("focus")
        self.key("Enter")
        self.page.wait_for_selector("main >> text=Workers")
        self.out["beside"] = self.page.locator("tbody tr").first.inner_text()

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
        tile = "() => Number(document.querySelector('.tile strong')?.innerText)"
        self.page.wait_for_function(f"() => ({tile})() > 0")
        first = self.page.evaluate(tile)
        self.page.wait_for_function(f"(first) => ({tile})() > first", arg=first)

    def server_ends(self, pid: int) -> None:
        """The page's time passes faster than ours."""
        os.kill(pid, signal.SIGTERM)
        stopped = self.page.locator(".lost button")
        while stopped.count() == 0:
            self.page.clock.fast_forward(3000)
            self.page.wait_for_timeout(50)
        self.out["lost"] = self.page.locator(".lost").inner_text()
        self.shot("stopped")
        later: list[str] = []
        self.page.on("request", lambda request: later.append(request.url))
        for _ in range(40):
            self.page.clock.fast_forward(3000)
            self.page.wait_for_timeout(20)
        self.out["later_requests"] = len(later)
        self.out["console"] = []  # requests that failed

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
    url, folder, chromium, kind, *run = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light", accept_downloads=True).new_page()
        page.set_default_timeout(60_000)
        visit = Visit(page, Path(folder), kind)
        if kind == "gone":
            page.clock.install()
        visit.open(url)
        if kind == "cluster":
            visit.page.wait_for_selector("main >> text=Runs")
            visit.shot("runs")
            visit.actors()
        elif kind == "empty":
            visit.pages(step="No step is recorded", memory="Memory", checkpoints="has saved no checkpoint")
        elif kind == "gone":
            visit.server_ends(int(run[0]))
        elif kind.startswith("trains"):
            page.click(f"td a:has-text('{run[0]}')") if kind == "trains" else page.wait_for_selector("main >> text=Step time")
            visit.pages(**({"actors": "TrainWorker", "logs": "has trained 40 steps"} if kind == "trains" else {}))
            visit.out["verdict"] = page.locator(".verdict").inner_text()
            visit.tab()
            visit.narrow()
            visit.dark()
            if kind == "trains":
                visit.grows()
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
