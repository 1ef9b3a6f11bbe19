"""Error messages when an assumption of the user is wrong, and silence when all is well."""

import pytest
from launching.leftovers import wait_until

import shoal

GUARD_S = 60

DRIVER = """
import os, sys, time
import shoal

@shoal.remote(num_cpus=1)
class Speaker:
    def say(self, text):
        print(text, flush=True)
        return shoal.get_runtime_context().get_node_id()

    def nodes(self):
        return len(shoal.nodes())

@shoal.remote(num_cpus=64)
def too_large():
    pass

shoal.init(address=os.environ.get("HEAD", "auto"))
"""


@pytest.fixture
def cluster(shoal_command):
    one = shoal_command.start(cpus=2)
    yield one
    done = shoal_command("stop", "--address", one.address)
    assert done.returncode in (0, 3), done


def fails(done, code, *texts):
    assert done.returncode == code, done
    for text in texts:
        assert text in done.stderr, done


# ---- commands


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("stauts",), ("no command `shoal stauts`", "did you mean `shoal status`?")),
        (("job", "lst"), ("no command `shoal job lst`", "did you mean `shoal job list`?")),
        (("kubernetes",), ("no command `shoal kubernetes`", "`shoal --help` lists")),
        ((), ("`shoal` lacks a command", "`shoal --help` lists")),
    ],
)
def test_an_unknown_command_suggests_a_similar_one(shoal_command, words, texts):
    fails(shoal_command(*words), 2, *texts)


# ---- tokens and addresses


@pytest.mark.parametrize("words", [("status",), ("list", "jobs"), ("stop",)])
def test_a_token_file_of_another_cluster_is_an_error(shoal_command, cluster, tmp_path, words):
    other, none, right = tmp_path / "other", tmp_path / "none", tmp_path / "right"
    other.write_text("5f" * 32)
    none.write_text("no token")
    right.write_text((cluster.session / "token").read_text())
    fails(shoal_command(*words, "--token-file", tmp_path / "missing"), 3, "no file")
    for file in (other, none):
        for where in ((), ("--address", cluster.address)):
            fails(shoal_command(*words, "--token-file", file, *where), 4, str(file), "token")
    assert shoal_command(*words, "--token-file", right).returncode == 0


def test_a_wrong_address_names_the_running_cluster(shoal_command, cluster):
    here = shoal_command("status", "--address", "127.0.0.1:1")
    fails(here, 5, "127.0.0.1:1", f"there is {cluster.address}", "`token` in its session's folder", "SHOAL_HOME")
    assert "ca-fingerprint" not in here.stderr  # on loopback there is no fingerprint
    fails(shoal_command("status", "--address", "10.1.2.3:1"), 5, "10.1.2.3:1", "--ca-fingerprint", "`shoal start --address 10.1.2.3:1`")
    driver = shoal_command.driver("import shoal\nshoal.init(address='127.0.0.1:1')", SHOAL_TOKEN="5f" * 32)
    assert driver.code() == 1
    assert f"there is {cluster.address}" in driver.err


def test_an_address_of_rays_client_names_the_alternative(home):
    with pytest.raises(shoal.exceptions.Unimplemented, match="submit it as a job"):
        shoal.init(address="ray://127.0.0.1:10001")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:1,there", "http://127.0.0.1:8265"])
def test_an_invalid_address_names_the_expected_form(home, monkeypatch, address):
    for given in ({"address": address}, {}):
        monkeypatch.setenv("SHOAL_ADDRESS", address)
        with pytest.raises(shoal.exceptions.InvalidArgument, match=f"'{address}' is no address of a cluster\n.*HOST:PORT.*auto.*local"):
            shoal.init(**given)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"num_cpus": -1}, ValueError, "num_cpus is 0 or more, not -1"),
        ({"num_cpus": "x"}, TypeError, "num_cpus is a number, not str"),
        ({"num_gpus": -1}, ValueError, "num_gpus is 0 or more, not -1"),
        ({"memory": float("nan")}, ValueError, "memory is 0 or more, not nan"),
        ({"resources": {"disk": "x"}}, TypeError, r"resources\['disk'\] is a number, not str"),
        ({"resources": 5}, TypeError, "resources is a dict of amounts by name, not int"),
    ],
)
def test_an_invalid_amount_of_init_names_the_argument(home, wrong, error, says):
    with pytest.raises(error, match=says):
        shoal.init(address="local", **wrong)


def test_stop_in_another_home_leaves_the_joined_cluster_alone(shoal_command, cluster, tmp_path):
    (tmp_path / "other").mkdir(mode=0o700)
    elsewhere = shoal_command.env(SHOAL_HOME=str(tmp_path / "other"))
    token = cluster.session / "token"
    wrong = tmp_path / "wrong"
    wrong.write_text("5f" * 32)
    join = ("start", "--address", cluster.address, "--num-cpus", "1", "--label", "home=other", "--token-file")
    fails(shoal_command(*join, wrong, env=elsewhere), 4, "token")
    node = shoal_command.json(*join, token, env=elsewhere)["node"]
    try:
        driver = shoal_command.driver(
            DRIVER
            + """
speaker = Speaker.options(label_selector={"home": "other"}).remote()
print("said on", shoal.get(speaker.say.remote("from the other home")))
""",
            SHOAL_HOME=str(tmp_path / "other"),
        )
        assert driver.code() == 0, driver.err
        assert f"said on {node}" in driver.out
        assert "from the other home" in driver.out
    finally:
        stopped = shoal_command.json("stop", env=elsewhere)["stopped"]
    assert len(stopped) == 1
    wait_until(lambda: states(shoal_command)[node] == "DEAD", GUARD_S, "its node's end")
    assert list(states(shoal_command).values()).count("ALIVE") == 1


def states(shoal_command):
    return {n["id"]: n["state"] for n in shoal_command.rows("nodes")}


# ---- waiting requests


def test_only_the_driver_warns_of_waiting_calls_by_function_name(shoal_command, cluster):
    err = shoal_command.home.parent / "err"
    driver = shoal_command.driver(
        """
import os
os.dup2(os.open(os.environ["ERR"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 2)
"""
        + DRIVER
        + """
speaker = Speaker.remote()
shoal.get(speaker.nodes.remote())
waits = too_large.remote()
while "too_large is pending" not in open(os.environ["ERR"]).read():
    time.sleep(0.05)
shoal.get(speaker.nodes.remote())  # the head's answer comes behind what it told that process
""",
        ERR=str(err),
    )
    assert driver.code() == 0, (driver.err, err.read_text())
    assert err.read_text().count("is pending") == 1, err.read_text()
    assert "function too_large is pending: can never start on the nodes that there are: needs CPU 64" in err.read_text()


def test_a_planned_drain_causes_no_warning(shoal_command, cluster):
    node = shoal_command.json("start", "--address", cluster.address, "--num-cpus", "1", "--label", "home=other")["node"]
    driver = shoal_command.driver(
        DRIVER
        + """
speaker = Speaker.options(label_selector={"home": "other"}).remote()
shoal.get(speaker.say.remote("there"))
print("said", flush=True)
while any(n["state"] != "DEAD" for n in shoal.nodes() if n["labels"].get("home") == "other"):
    time.sleep(0.05)
shoal.nodes()
"""
    )
    driver.said("said\n")
    assert shoal_command.json("drain", node, "--deadline", "0")["now"] == "drained"
    assert driver.code() == 0, driver.err
    assert "warning" not in driver.err, driver.err


# ---- logs and ended jobs


def test_logs_are_found_by_an_actors_name_or_class(shoal_command, cluster):
    driver = shoal_command.driver(
        DRIVER
        + """
named, other = Speaker.options(name="first").remote(), Speaker.remote()
shoal.get([named.say.remote("from first"), other.say.remote("from other")])
print("said", flush=True)
time.sleep(600)
"""
    )
    driver.said("said\n")

    def printed(*words):
        return shoal_command("logs", *words).stdout

    for words in (("first",), ("actor", "--id", "first")):
        wait_until(lambda words=words: printed(*words) == "(Speaker) from first\n", GUARD_S, "what it printed")
    wait_until(lambda: sorted(printed("Speaker").splitlines()) == ["(Speaker) from first", "(Speaker) from other"], GUARD_S, "of both")
    fails(shoal_command("logs", "second"), 3, "no job, worker or actor has the id or name second")
    driver.process.kill()
    driver.code()
    wait_until(lambda: printed("first") == "(Speaker) from first\n", GUARD_S, "the same after its end")


def test_the_driver_names_the_command_for_logs_of_detached_actors(shoal_command, cluster):
    driver = shoal_command.driver(
        DRIVER
        + """
for name in ("one", "two"):
    actor = Speaker.options(name=name, lifetime="detached").remote()
    shoal.get(actor.say.remote("from " + name))
shoal.shutdown()
shoal.init(address="auto", log_to_driver=False)
Speaker.options(name="three", lifetime="detached", num_cpus=0).remote()
"""
    )
    assert driver.code() == 0, driver.err
    assert driver.err.count("what detached actors print is not shown here; to read it: shoal logs one") == 1, driver.err
    assert driver.err.count("what detached actors print") == 1, driver.err
    assert "from one" not in driver.out
    wait_until(lambda: "from one" in shoal_command("logs", "one").stdout, GUARD_S, "what it printed")


def test_an_empty_list_of_tasks_explains_itself(shoal_command, cluster):
    done = shoal_command("list", "tasks")
    assert (done.returncode, "no process knows of a call" in done.stderr) == (0, True), done
    assert "job that has ended" in done.stderr
    assert shoal_command.rows("tasks") == []


def test_a_successful_job_ends_without_warnings(shoal_command, cluster):
    script = shoal_command.script(DRIVER + 'speaker = Speaker.remote()\nshoal.get(speaker.say.remote("hello"))\n')
    done = shoal_command("submit", script)
    assert done.returncode == 0, done
    assert done.stderr == ""
    ended = [w["state"] for w in shoal_command.rows("workers")]
    wait_until(lambda: all(w["state"] == "EXITED" for w in shoal_command.rows("workers")), GUARD_S, f"the end of {ended}")
    for what in ("actors", "workers", "jobs"):
        shown = shoal_command("list", what).stdout
        assert not any(word in shown for word in ("SIGKILL", "died", "error", "FAILED")), shown
