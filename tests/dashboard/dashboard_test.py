"""``shoal dashboard``: the pages and views that it serves, access to them, and the file that it exports."""

import html.parser
import json
import os
import signal

import pytest
from launching.commands import LIMIT_S
from launching.leftovers import wait_until
from serving import serve
from synthetic_run import HOSTILE, SyntheticRun


def run_of(folder, trouble="", ranks=4, steps=40) -> SyntheticRun:
    run = SyntheticRun(folder, ranks=ranks, hosts=min(ranks, 2), trouble=trouble)
    run.advance(steps)
    return run


def test_a_run_is_served_to_whoever_has_the_token(shoal_command, tmp_path):
    run = run_of(tmp_path / "slow run", "straggler")
    board = serve(shoal_command, "--run", run.folder)
    assert board.address.hostname == "127.0.0.1"
    assert len(board.token) == 64
    views = "/api/v1/runs/slow%20run"

    for path in ("/api/v1/about", "/api/v1/runs", f"{views}/summary", "/nonsense"):
        assert board.request(path, Authorization=None)[0] == 401, path
        assert board.request(path, Authorization="Bearer " + "0" * 64)[0] == 401, path
    for path in ("/", f"{views}/summary"):
        assert board.request(path, Host="evil.example")[0] == 403, path
        assert board.request(path, Origin="http://evil.example")[0] == 403, path
    assert board.request("/", method="POST")[0] == 405
    assert board.request("/api/v0/actors")[0] == 404

    status, headers, page = board.request("/", Authorization=None)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert board.token not in page
    assert "slow run" not in page

    assert [row["name"] for row in board.json("/api/v1/runs")["rows"]] == ["slow run"]
    summary = board.json(f"{views}/summary")
    assert summary["step"] == 40
    assert [verdict["rank"] for verdict in summary["verdicts"] if verdict["code"] == "straggler"] == [3]
    workers = board.json(f"{views}/workers?sort=score")["rows"]
    assert (workers[0]["rank"], len(workers)) == (3, 4)

    board.running.signal(signal.SIGINT)
    assert board.running.code() == 0


def test_a_reader_gets_what_is_new(shoal_command, tmp_path):
    run = run_of(tmp_path / "run")
    board = serve(shoal_command, "--run", run.folder)
    have = board.json("/api/v1/runs/run/steps?points=100")
    assert have["columns"]["step"] == list(range(1, 41))
    run.advance(2)
    while True:  # a run is read again after a moment
        more = board.json(f"/api/v1/runs/run/steps?points=100&cursor={have['cursor']}")
        if more["columns"]["step"][-1] == 42:
            break
    assert (more["reset"], more["columns"]["step"]) == (False, [40, 41, 42])


def test_wrong_requests_say_what_is_wrong(shoal_command, tmp_path):
    run_of(tmp_path / "run")
    (tmp_path / "secret").write_text("x")
    board = serve(shoal_command, "--run", tmp_path / "run")
    for path in ("/api/v1/runs/other/summary", "/api/v1/runs/..%2Fsecret/summary", "/api/v1/runs/../summary", "/api/v1/runs/run/secrets"):
        assert board.request(path)[0] == 404, path
    status, _, body = board.request("/api/v1/runs/run/steps?points=all")
    assert (status, json.loads(body)["code"]) == (400, "InvalidArgument")
    assert "points is a number from 10 to 5000, not 'all'" in body

    for words, code, text in (
        (["--run", tmp_path / "nowhere"], 3, "nowhere"),
        (["--run", tmp_path], 3, "is no run's folder"),
        (["--port", "80"], 2, "--port needs --run"),
        (["--export", "x.html"], 2, "--export needs --run"),
    ):
        done = shoal_command("dashboard", *words)
        assert done.returncode == code, done
        assert text in done.stderr
    taken = shoal_command("dashboard", "--run", tmp_path / "run", "--port", board.address.port)
    assert taken.returncode == 1
    assert "choose another --port" in taken.stderr


class Page(html.parser.HTMLParser):
    """The elements of a page, as a browser finds them."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[str] = []
        self.snapshot = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self._inside = dict(attributes).get("id") == "snapshot"

    def handle_data(self, data):
        self.snapshot += data if self._inside else ""


def test_an_export_replaces_a_file_and_no_link(shoal_command, tmp_path):
    run_of(tmp_path / "run").end(0)
    export = ("dashboard", "--run", tmp_path / "run", "--export", tmp_path / "one.html")
    (tmp_path / "one.html").symlink_to(tmp_path / "other")
    done = shoal_command(*export)
    assert done.returncode != 0
    assert "is a link" in done.stderr
    assert not (tmp_path / "other").exists()
    (tmp_path / "one.html").unlink()
    (tmp_path / "one.html").write_text("old")
    assert shoal_command(*export).returncode == 0
    assert (tmp_path / "one.html").stat().st_mode & 0o777 == 0o600
    assert "<html" in (tmp_path / "one.html").read_text()
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith("one")} == {"one.html"}


@pytest.mark.parametrize("trouble", ["", "killed", "hostile"])
def test_an_exported_file_contains_the_run_and_no_element_of_its_names(shoal_command, home, tmp_path, trouble):
    run = run_of(home / "runs" / "run", trouble, steps=120)
    run.end(0)
    said = shoal_command.json("dashboard", "--run", "run", "--export", tmp_path / "one.html")
    text = (tmp_path / "one.html").read_text()
    assert said["bytes"] == len(text.encode())
    page = Page(text)
    assert "img" not in page.elements
    assert page.elements.count("script") == 2
    data = json.loads(page.snapshot)
    assert data["views"]["summary"]["step"] == 120
    assert data["views"]["checkpoints"]["total"] == 1
    if trouble == "killed":
        assert {"death", "generation"} <= set(data["views"]["events"]["kinds"])
    if trouble == "hostile":
        assert HOSTILE in {row["name"] for row in data["views"]["metrics"]["series"]}


def test_the_cluster_serves_the_page_and_its_runs(shoal_command, home):
    cluster = shoal_command.start()
    board = serve(shoal_command)
    assert board.running.code() == 0
    assert board.token != (cluster.session / "http-token").read_text().strip()
    assert "<title>Shoal</title>" in board.request("/", Authorization=None)[2]
    assert board.json("/api/v1/about")["cluster"] is True
    assert board.json("/api/v1/runs") == {"rows": [], "total": 0, "offset": 0}
    assert board.request("/api/jobs/", method="POST")[0] == 401  # the page's token reads and changes nothing

    def states() -> dict[str, str]:
        return {row["name"]: row["state"] for row in board.json("/api/v1/runs")["rows"]}

    first = run_of(home / "runs" / "first")
    run_of(home / "runs" / "second", ranks=1).end(3, "it broke")
    assert states() == {"first": "lost", "second": "failed"}
    first.end(0)
    assert states() == {"first": "ended", "second": "failed"}
    assert board.json("/api/v1/runs/second/summary")["end"]["cause"] == "it broke"
    nodes = board.json("/api/v0/nodes")["rows"]
    assert len(nodes) == 1
    for wanted, number in ((nodes[0]["state"].lower(), 1), ("dead", 0)):
        assert len(board.json(f"/api/v0/nodes?state={wanted}")["rows"]) == number, nodes
    assert board.json(f"/api/v0/nodes?contains={nodes[0]['host']}")["total"] == 1
    assert board.json("/api/v0/nodes?contains=nothing-has-this")["total"] == 0
    assert shoal_command("stop").returncode == 0


def test_the_pages_token_ends_with_its_head(shoal_command):
    """A process that listens on the port of a head that is gone cannot use what an open page sends to it."""
    cluster = shoal_command.start()
    before = serve(shoal_command)
    assert before.request("/api/v1/about")[0] == 200
    cluster.kill_head()
    wait_until(lambda: shoal_command("dashboard").returncode == 0 and serve(shoal_command).token != before.token, LIMIT_S, "the next head")
    after = serve(shoal_command)
    assert after.request("/api/v1/about")[0] == 200
    assert after.request("/api/v1/about", Authorization=f"Bearer {before.token}")[0] == 401
    assert shoal_command("stop").returncode == 0


def test_runs_are_listed_in_pages_the_newest_first(shoal_command, home):
    for number in range(130):
        folder = home / "runs" / f"run-{number:03}"
        (folder / "processes").mkdir(parents=True)
        for path in (folder / "processes", folder):
            os.utime(path, (1_700_000_000 + number * 7 % 130,) * 2)
    shoal_command.start()
    board = serve(shoal_command)
    newest = [f"run-{number:03}" for number in sorted(range(130), key=lambda number: -(number * 7 % 130))]
    first = board.json("/api/v1/runs")
    assert ([row["name"] for row in first["rows"]], first["total"]) == (newest[:100], 130)
    assert [row["name"] for row in board.json("/api/v1/runs?offset=120&limit=50")["rows"]] == newest[120:]
    assert board.request("/api/v1/runs?limit=all")[0] == 400
    run_of(home / "runs" / "just-now", ranks=1)
    assert board.json("/api/v1/runs?limit=1")["rows"][0]["name"] == "just-now"
    assert shoal_command("stop").returncode == 0


def test_a_run_whose_folder_was_made_again_is_read_anew(shoal_command, tmp_path):
    run_of(tmp_path / "run", steps=40)
    board = serve(shoal_command, "--run", tmp_path / "run")
    view = "/api/v1/runs/run"
    have = board.json(f"{view}/steps?points=100")
    events = board.json(f"{view}/events")
    (tmp_path / "run").rename(tmp_path / "old")
    run_of(tmp_path / "run", steps=60)
    again = board.json(f"{view}/steps?points=100&cursor={have['cursor']}")
    assert (again["reset"], again["columns"]["step"]) == (True, list(range(1, 61)))
    assert board.json(f"{view}/events?cursor={events['cursor']}")["rows"]
    assert board.json(f"{view}/summary")["step"] == 60


def test_without_a_cluster_it_says_what_to_do(shoal_command):
    done = shoal_command("dashboard")
    assert done.returncode == 5
    assert "shoal dashboard --run RUN" in done.stderr
