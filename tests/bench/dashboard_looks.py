"""People who look at pages in Debian's Chromium: `python dashboard_looks.py WHAT URL ..`, in an environment with Playwright.

`paint URL TEXT ROUNDS`: milliseconds until the first paint, and until TEXT is there, in a new browser context each time.
`rows URL ROUNDS`: milliseconds from a key or click until each list of a cluster has rows.
`look URL RUN THIRD SECONDS`: three people look at a run, the third one at the page `actors` or `events`; prints `they look` once all see
them, and then the number of their requests.
Each prints one JSON object at its end.
"""

import json
import shutil
import sys
import time

from playwright.sync_api import Browser, Page, sync_playwright

LIMIT_MS = 60_000


def new_page(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.set_default_timeout(LIMIT_MS)
    return page


def paint(browser: Browser, url: str, text: str, rounds: str) -> dict:
    first, content = [], []
    for _ in range(int(rounds)):
        page = new_page(browser)
        begin = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_selector(f"text={text}")
        content.append((time.perf_counter() - begin) * 1000)
        entries = "performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)"
        page.wait_for_function(f"() => {entries}.length > 0")
        first += page.evaluate(entries)
        page.context.close()
    return {"first": first, "content": content}


def rows(browser: Browser, url: str, rounds: str) -> dict:
    out: dict[str, list[float]] = {}
    for _ in range(int(rounds)):
        page = new_page(browser)
        page.goto(url)
        page.wait_for_selector("nav.side")
        for name, milliseconds in lists(page).items():
            out.setdefault(name, []).append(milliseconds)
        page.context.close()
    return out


def lists(page: Page) -> dict[str, float]:
    def timed(act, selector: str) -> float:
        begin = time.perf_counter()
        act()
        page.wait_for_selector(selector)
        return (time.perf_counter() - begin) * 1000

    return {
        "actors": timed(lambda: page.keyboard.press("5"), "tbody tr >> text=Trainer"),
        "next page": timed(lambda: page.keyboard.press("ArrowRight"), ".pager >> text=page 2"),
        "jobs": timed(lambda: page.click(".tabs button:has-text('jobs')"), "tbody tr >> text=job 1"),
        "nodes": timed(lambda: page.click(".tabs button:has-text('nodes')"), "tbody tr >> text=node-1."),
        "logs": timed(lambda: page.keyboard.press("8"), "pre.log, main .empty:not(.waiting)"),
    }


def look(browser: Browser, url: str, run: str, third: str, seconds: str) -> dict:
    num_requests = 0

    def count(_) -> None:
        nonlocal num_requests
        num_requests += 1

    pages = []
    for name, text in (
        ("run", "Step time"),
        ("workers", "rank 7 beside the others"),
        (third, {"actors": "Trainer", "events": "began to train"}[third]),
    ):
        page = new_page(browser)
        page.on("request", count)
        page.goto(url)
        page.wait_for_selector("nav.side")
        page.evaluate(f"location.hash = '#/{run}/{name}'")
        page.wait_for_selector(f"main >> text={text}")
        pages.append(page)
    print("they look", flush=True)
    num_requests = 0
    pages[0].wait_for_timeout(float(seconds) * 1000)
    assert not any(page.evaluate("document.hidden") for page in pages)  # a hidden page sends nothing
    return {"requests": num_requests, "steps": int(pages[0].locator(".tile strong").first.inner_text())}


def main() -> None:
    what, *words = sys.argv[1:]
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Debian's chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(json.dumps({"paint": paint, "rows": rows, "look": look}[what](browser, *words)), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
