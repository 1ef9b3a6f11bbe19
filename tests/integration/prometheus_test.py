"""Debian's Prometheus reads the head's metrics, and answers each expression of the dashboard for Grafana.

Not part of ``bazel test //...``: it gets Prometheus from Debian, without installing it, because the package starts a service.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from dashboard import busy_cluster, targets
from launching.leftovers import wait_until

LIMIT_S = 60


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The folder of prometheus and promtool. $TEST_PROMETHEUS: a folder in which to keep Debian's."""
    if found := shutil.which("prometheus"):
        return Path(found).parent
    kept = os.environ.get("TEST_PROMETHEUS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("prometheus")
    programs = folder / "root" / "usr" / "bin"
    if not programs.exists():
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"Debian's package prometheus cannot be downloaded here: {done.stderr.strip()}")
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    return programs


@contextlib.contextmanager
def prometheus(programs, config, folder):
    """Prometheus on a port of loopback. Returns a function that reads a path of its API."""
    (folder / "prometheus.yml").write_text("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n" + config)
    checked = subprocess.run([programs / "promtool", "check", "config", folder / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    argv = [programs / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]

    def read(path, **parameters):
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=LIMIT_S) as answer:
            got = json.load(answer)
        assert got["status"] == "success", got
        return got["data"]

    def target():
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return next((t for t in read("targets")["activeTargets"] if t["health"] == "up" or t["lastError"]), None)

    with open(folder / "log", "w") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield read, wait_until(target, LIMIT_S, "the first scrape")
    finally:
        process.terminate()
        process.wait(LIMIT_S)
    log = (folder / "log").read_text()
    assert "level=error" not in log, log


def test_prometheus_reads_the_metrics_and_answers_the_dashboard(programs, shoal_command, tmp_path):
    with busy_cluster(shoal_command):
        text = shoal_command("metrics").stdout
        checked = subprocess.run([programs / "promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=LIMIT_S)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        with prometheus(programs, shoal_command("metrics", "--scrape-config").stdout, tmp_path) as (read, target):
            assert (target["health"], target["lastError"], target["labels"]["job"]) == ("up", "", "shoal")
            unanswered = {t.query for t in targets()}

            def answered():
                unanswered.difference_update([query for query in unanswered if read("query", query=query)["result"]])
                return not unanswered

            with contextlib.suppress(AssertionError):  # the next line shows what is missing
                wait_until(answered, LIMIT_S)
            assert unanswered == set()
            (nodes,) = read("query", query='shoal_nodes{state="ALIVE"}')["result"]
            assert nodes["value"][1] == "1"
            (lost,) = read("query", query="sum(shoal_user_tracker_lost_total)")["result"]
            assert lost["value"][1] == "2"
            for counted in ("scrape_samples_scraped", "scrape_samples_post_metric_relabeling"):
                (samples,) = read("query", query=counted)["result"]
                assert int(samples["value"][1]) >= len({name for t in targets() for name in t.series})


def test_prometheus_needs_the_token(programs, shoal_command, tmp_path):
    (tmp_path / "wrong").write_text("0" * 64)
    with busy_cluster(shoal_command):
        token = shoal_command.json("metrics", "--scrape-config")["token_file"]
        config = shoal_command("metrics", "--scrape-config").stdout.replace(token, str(tmp_path / "wrong"))
        with prometheus(programs, config, tmp_path) as (_, target):
            assert (target["health"], target["lastError"]) == ("down", "server returned HTTP status 401 Unauthorized")
