"""submit: a script as a job. Its output, its exit code, its ranks, and every way to end it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from launching.commands import LIMIT_S, binary
from launching.leftovers import alive, descendants, wait_until

import shoal


@pytest.fixture
def cluster(shoal_command):
    one = shoal_command.start(cpus=8)
    yield one
    done = shoal_command("stop", "--address", one.address)
    assert done.returncode in (0, 3), done


@pytest.fixture(params=["its own cluster", "a running cluster"])
def either(request, shoal_command):
    """Runs a test with and without a running cluster: scripts run the same way."""
    if request.param == "a running cluster":
        request.getfixturevalue("cluster")
    return request.param


def submit(shoal_command, text, *options, arguments=()):
    return shoal_command("submit", *options, shoal_command.script(text), *arguments)


# ---- a script


def test_a_script_runs_as_under_python(shoal_command, either):
    done = submit(
        shoal_command,
        """
        import os, sys
        print(sys.argv[1:], __name__, os.path.basename(__file__))
        print("to stderr", file=sys.stderr)
        """,
        arguments=["--flag", "a b", "-x", "", "--", "--num-workers", "2", "--"],
    )
    assert done.returncode == 0, done
    assert done.stdout == "['--flag', 'a b', '-x', '', '--', '--num-workers', '2', '--'] __main__ script.py\n"
    assert done.stderr == "to stderr\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("import sys; sys.exit('a message')", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os._exit(255)", 255),
        ("syntax error here", 1),
    ],
)
def test_the_exit_code_is_the_scripts(shoal_command, cluster, text, code):
    done = submit(shoal_command, text)
    assert done.returncode == code, done


def test_an_exception_ends_with_its_traceback_last(shoal_command, either):
    done = submit(shoal_command, "def inner():\n    raise ValueError('the cause')\n\ninner()\n")
    assert done.returncode == 1
    lines = done.stderr.rstrip().splitlines()
    assert any(line.startswith("Traceback") for line in lines)
    said = next(i for i, line in enumerate(lines) if line == "ValueError: the cause")
    assert not any("File" in line for line in lines[said:])
    assert not any("_zygote" in line for line in lines)


def test_tracebacks_of_functions_and_actors_name_script_lines(shoal_command, cluster):
    script = shoal_command.script(
        """
        import shoal
        @shoal.remote
        def boom():
            return [(lambda: 1 / 0)() for _ in "a"]
        @shoal.remote
        class Actor:
            def fails(self):
                raise KeyError("nothing there")
        for ref in (boom.remote(), Actor.remote().fails.remote()):
            try:
                shoal.get(ref)
            except Exception as error:
                print(error.traceback_str if hasattr(error, "traceback_str") else error)
        """
    )
    done = shoal_command("submit", script)
    lines = script.read_text().splitlines()
    for name, what in (("boom", "return [(lam"), ("<lambda>", "return [(lam"), ("fails", "raise KeyError")):
        number = next(i for i, line in enumerate(lines, 1) if what in line)
        assert f'File "{script}", line {number}, in {name}\n    {lines[number - 1].strip()}' in done.stdout, done
    assert "<dynamic-code>" not in done.stdout, done


def test_any_command_can_be_a_job(shoal_command, either):
    done = shoal_command("submit", "--", "sh", "-c", "echo $0 $1; exit 4", "a b", "--json")
    assert (done.returncode, done.stdout) == (4, "a b --json\n"), done


@pytest.mark.parametrize("words", [("submit",), ("job", "submit")])
def test_data_on_stdin_that_the_job_does_not_get_is_a_warning(shoal_command, cluster, words):
    def said(**stdin):
        command = [binary(), *words, "--", "cat"]
        done = subprocess.run(command, env=shoal_command.env(), cwd=shoal_command.home, capture_output=True, timeout=LIMIT_S, **stdin)
        assert done.returncode == 0, done
        return done.stderr.decode()

    warning = "the job does not get what this command has on its stdin"
    assert said(input=b"data").count(warning) == 1
    file = shoal_command.home / "data"
    file.write_text("data")
    with file.open() as opened:
        assert warning in said(stdin=opened)
    assert warning not in said(input=b"")
    assert warning not in said(stdin=subprocess.DEVNULL)


def test_a_script_sees_the_submitters_folder_and_environment(shoal_command, either):
    script = shoal_command.script("import os; print(os.getcwd(), os.environ['MINE'], os.environ.get('SHOAL_HOME'))")
    done = shoal_command("submit", script, env=shoal_command.env(MINE="yes"))
    assert done.stdout.split()[:2] == [str(shoal_command.home), "yes"], done


@pytest.mark.parametrize("options", [(), ("--num-workers", "1")], ids=["a script", "a gang"])
def test_a_job_inherits_shoals_settings_except_the_place(shoal_command, cluster, options):
    text = """
        import os
        names = ("FSDP", "TIMEOUT", "TASK_RETRY_DELAY_MS", "SPMD_DEVICES")
        print(*(os.environ.get("SHOAL_" + name) for name in names), end=" ")
        print("SHOAL_GROUP" in os.environ, os.environ["SHOAL_WORKER_ID"] == "w", os.environ["SHOAL_SESSION"], end=" ")
        if "RANK" in os.environ:
            from torch.distributed.fsdp import fully_shard
            print(fully_shard.__module__, end="")
        print()
        """
    settings = {"SHOAL_FSDP": "1", "SHOAL_TIMEOUT": "77", "SHOAL_TASK_RETRY_DELAY_MS": "33", "SHOAL_SPMD_DEVICES": "2"}
    place = {"SHOAL_GROUP": "g", "SHOAL_WORKER_ID": "w", "SHOAL_SESSION": "/nowhere"}
    done = shoal_command("submit", *options, shoal_command.script(text), env=shoal_command.env(**settings, **place))
    seen = f"1 77 33 2 False False {cluster.session}"
    assert done.stdout.split() == [*(["[rank0]"] if options else []), *seen.split(), *(["shoal.fsdp._fully_shard"] if options else [])], (
        done
    )


def test_every_rank_finds_the_submitters_modules(shoal_command, either):
    library = shoal_command.home.parent / "library"
    library.mkdir()
    (library / "of_the_submitter.py").write_text("word = 'found'\n")
    script = shoal_command.script("import of_the_submitter; print(of_the_submitter.word)")
    path = ":".join(["../library", *filter(None, [os.environ.get("PYTHONPATH")])])
    done = shoal_command("submit", "--num-workers", "2", script, env=shoal_command.env(PYTHONPATH=path))
    assert sorted(done.stdout.splitlines()) == ["[rank0] found", "[rank1] found"], done


def test_a_script_without_newline_at_its_end_and_binary_output_arrive_whole(shoal_command, cluster):
    done = shoal_command("submit", "--", "sh", "-c", "printf 'no newline'; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last")
    assert (
        done.stdout == "no newline" + "x" * 300_000 + "\nlast\n" or done.stdout.replace("\n", "") == "no newline" + "x" * 300_000 + "last"
    )
    assert done.stdout.endswith("last\n")


def test_every_line_of_much_output_arrives_in_order(shoal_command, either):
    done = submit(shoal_command, "for i in range(50_000): print('line', i)")
    assert done.stdout == "".join(f"line {i}\n" for i in range(50_000))


@pytest.mark.parametrize("actor", [False, True], ids=["a script", "a script whose actor ended before"])
def test_a_slow_reader_gets_every_line(shoal_command, cluster, actor):
    script = shoal_command.script(
        f"""
        import shoal
        if {actor}:
            @shoal.remote
            class A:
                def f(self): pass
            a = A.remote()
            shoal.get(a.f.remote())
            shoal.kill(a)
        for i in range(200_001): print("line", i)
        """
    )
    with subprocess.Popen([binary(), "submit", script], env=shoal_command.env(), stdout=subprocess.PIPE, cwd=shoal_command.home) as job:
        first = os.read(job.stdout.fileno(), 1)
        wait_until(lambda: shoal_command.rows("jobs")[0]["state"] == "SUCCEEDED", 20, "the end of the job")
        text = first
        while piece := os.read(job.stdout.fileno(), 1 << 16):
            text += piece
            time.sleep(0.05)  # these pauses add up to more than the time that a client would wait if it did not count new lines as progress
    assert job.returncode == 0
    assert text.decode().splitlines() == [f"line {i}" for i in range(200_001)]


def test_submit_prints_json(shoal_command, cluster):
    script = shoal_command.script("print('talk'); raise SystemExit(3)")
    done = shoal_command("submit", "--json", "--name", "mine", "--metadata", "team=a=b", script)
    assert done.returncode == 3
    said = json.loads(done.stdout)
    assert (said["schema"], said["name"], said["state"], said["exit_code"]) == ("shoal.submit/1", "mine", "FAILED", 3)
    assert said["metadata"] == {"team": "a=b"}
    assert done.stderr == "talk\n"


@pytest.mark.parametrize(
    ("words", "code", "texts"),
    [
        (["nothing.py"], 127, ["no script nothing.py", "hint"]),
        (["--", "no-such-program"], 127, ["no-such-program"]),
        (["."], 126, ["cannot be read"]),
        ([], 121, ["nothing to run"]),
        (["--num-workers", "-1", "x.py"], 121, ["num-workers"]),
        (["--num-gpus", "lots", "x.py"], 121, ["num-gpus"]),
        (["--num-cpus", "-1", "x.py"], 121, ["num-cpus", "0 or more, not -1"]),
        (["--bad", "x.py"], 121, ["--bad"]),
        (["--resource", "slot", "--", "true"], 121, ["NAME=AMOUNT"]),
        (["--metadata", "team", "--", "true"], 121, ["NAME=VALUE"]),
        (["--address", "127.0.0.1:1", "--", "true"], 124, ["no running cluster"]),
        (["--num-gpus", "64", "--", "true"], 125, ["GPU", "nearest fit", "--wait"]),
        (["--num-workers", "2", "--resource", "slot=1", "--", "true"], 125, ["slot"]),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else str(x),
)
def test_a_program_that_cannot_run_has_its_own_exit_code(shoal_command, either, words, code, texts):
    done = shoal_command("submit", *words)
    assert done.returncode == code, done
    for text in texts:
        assert text in done.stderr, done
    assert done.stdout == ""


def test_a_setting_that_is_neither_on_nor_off_is_refused(shoal_command, either):
    done = shoal_command("submit", "--", "true", env=shoal_command.env(SHOAL_SPMD="maybe"))
    assert done.returncode == 121, done
    assert "SHOAL_SPMD is 1, true, on or yes, or 0, false, off, no or empty, not 'maybe'" in done.stderr


def test_a_job_may_wait_for_future_nodes(shoal_command, cluster):
    job = shoal_command.popen("submit", "--wait", "--resource", "slot=1", "--", "echo", "placed")
    job.said("pending")
    assert "slot" in job.err
    assert shoal_command("start", "--address", cluster.address, "--resource", "slot=1").returncode == 0
    assert job.code() == 0
    assert job.out == "placed\n"


def test_a_waiting_job_can_be_stopped(shoal_command, either):
    job = shoal_command.popen("submit", "--wait", "--num-gpus", "64", "--", "true")
    job.said("pending")
    job.signal(signal.SIGINT)
    assert job.code() == 130


def test_a_driver_under_submit_uses_the_cluster_it_runs_in(shoal_command, either):
    script = """
        import os, shoal

        @shoal.remote
        def where():
            print("from a worker")
            return os.getpid()

        shoal.init()
        assert shoal.get(where.remote()) != os.getpid()
        print("jobs", len(shoal._core.process.session().list("jobs")))
        """
    done = submit(shoal_command, script)
    assert done.returncode == 0, done
    assert "jobs 1\n" in done.stdout
    assert re.search(r"^\(.*\) from a worker$", done.stdout, re.M), done


# ---- the end

SLEEPER = """
import os, time
pid = os.fork()
if pid == 0:
    time.sleep(1000)
print("pids", os.getpid(), pid, flush=True)
time.sleep(1000)
"""
STUBBORN = "import signal\nfor n in (signal.SIGINT, signal.SIGTERM):\n    signal.signal(n, signal.SIG_IGN)\n" + SLEEPER


def started(shoal_command, text, *options, ranks=1):
    # The ranks are plain programs without torch, which these tests do not need.
    options = options if "--detach-after" in options else ("--detach-after", "600", *options)  # time enough for a second Ctrl-C
    job = shoal_command.popen("submit", *options, "--", sys.executable, shoal_command.script(text))
    wait_until(lambda: job.out.count("pids ") == ranks or job.process.poll() is not None, 20, "its ranks")
    pids = [int(p) for line in job.out.splitlines() if "pids " in line for p in line.partition("pids ")[2].split()]
    assert len(pids) == 2 * ranks, (job.out, job.err)
    return job, pids


def gone(pids, within=5.0):
    wait_until(lambda: not any(alive(p) for p in pids), within, f"the end of {pids}")


def interrupt(job, either):
    """Sends as many Ctrl-C as stop a job: one, or two if the cluster runs on without the job."""
    job.signal(signal.SIGINT)
    if either != "its own cluster":
        job.said("Ctrl-C again")
        assert "stopping the job" not in job.err
        job.signal(signal.SIGINT)
    job.said("stopping the job")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_signal_to_submit_ends_the_job_with_its_processes(shoal_command, either, number, ranks):
    job, pids = started(shoal_command, SLEEPER, *(["--num-workers", str(ranks)] if ranks else []), ranks=max(1, ranks))
    if either == "its own cluster":
        pids += descendants(job.pid)
    if number == signal.SIGINT:
        interrupt(job, either)
    else:
        job.signal(number)
    assert job.code() == 128 + number
    gone(pids)
    assert "stopping the job" in job.err


def test_the_first_ctrl_c_detaches_from_the_job(shoal_command, cluster):
    job, pids = started(shoal_command, SLEEPER, "--detach-after", "0")
    job.signal(signal.SIGINT)
    assert job.code() == 130
    (row,) = shoal_command.rows("jobs")
    assert row["state"] == "RUNNING"
    assert f"goes on, this command ends; Ctrl-C again now stops the job. To see it: shoal job logs -f {row['id']}" in job.err
    assert all(alive(p) for p in pids)
    assert shoal_command("job", "stop", row["id"]).returncode == 0
    gone(pids)


def test_a_killed_submit_ends_a_driver_inside_a_shell(shoal_command):
    script = shoal_command.script(
        """
        import os, time
        import shoal
        shoal.init()
        print("pids", os.getpid(), os.getppid())
        time.sleep(1000)
        """
    )
    job = shoal_command.popen("submit", "--", "bash", "-c", f"{sys.executable} {script}; true")
    job.said("pids")
    pids = [int(p) for p in job.out.partition("pids ")[2].split()] + list(descendants(job.pid))
    job.signal(signal.SIGKILL)
    gone(pids)


def test_a_second_ctrl_c_kills_a_stubborn_job(shoal_command, either):
    job, pids = started(shoal_command, STUBBORN)
    interrupt(job, either)
    job.said("once more kills it")
    assert job.process.poll() is None
    job.signal(signal.SIGINT)
    assert job.code() == 130
    assert "killing the job" in job.err
    gone(pids)


def test_one_stop_ends_a_stubborn_job(shoal_command, either):
    job, pids = started(shoal_command, STUBBORN)
    interrupt(job, either)
    assert job.code() == 130
    gone(pids)


def test_a_job_that_handles_a_signal_gets_time_to_end(shoal_command, cluster):
    script = """
        import signal, sys, time
        def end(*_):
            time.sleep(0.5)
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("pids 1 2", flush=True)
        time.sleep(1000)
        """
    job, _ = started(shoal_command, script)
    interrupt(job, "a running cluster")
    assert job.code() == 130
    assert "saved" in job.out


def test_sigkill_of_a_submit_with_its_own_cluster_leaves_nothing(shoal_command):
    job, pids = started(shoal_command, SLEEPER, "--num-workers", "2", ranks=2)
    pids += descendants(job.pid)
    job.signal(signal.SIGKILL)
    job.code()
    gone(pids)


def test_sigkill_of_the_node_ends_the_job(shoal_command, cluster):
    job, pids = started(shoal_command, SLEEPER, "--num-workers", "2", ranks=2)
    os.kill(cluster.pid("node"), signal.SIGKILL)
    assert job.code() != 0
    assert "node" in job.err
    gone(pids)


def test_sigkill_of_the_head_affects_neither_job_nor_follower(shoal_command, cluster):
    job, pids = started(shoal_command, SLEEPER)
    head = cluster.pid("head")
    os.kill(head, signal.SIGKILL)
    wait_until(lambda: cluster.pids("head") not in ([], [head]), LIMIT_S, "another head")
    assert [j["state"] for j in shoal_command.rows("jobs")] == ["RUNNING"]
    assert all(alive(p) for p in pids)
    interrupt(job, "a running cluster")
    assert job.code() == 130
    gone(pids)


def test_sigkill_of_an_embedded_cluster_process_ends_the_job(shoal_command):
    job, pids = started(shoal_command, SLEEPER)
    (local,) = [int(p.name.split(".")[1]) for p in shoal_command.home.glob("*/pids/local.*")]
    os.kill(local, signal.SIGKILL)
    assert job.code() == 124
    gone(pids)


def test_stop_ends_jobs_and_their_submits(shoal_command, cluster):
    job, pids = started(shoal_command, SLEEPER, "--num-workers", "2", ranks=2)
    assert shoal_command("stop").returncode == 0
    gone(pids)
    assert job.code() != 0
    assert "the cluster was stopped, and the job with it" in job.err
    assert "error" not in job.err


def test_a_submit_that_starts_a_cluster_leaves_nothing_running(shoal_command):
    done = shoal_command("submit", "--", "true")
    assert done.returncode == 0
    wait_until(lambda: shoal_command("status").returncode == 5, 5, "the end of its cluster")
    assert not shoal.is_initialized()


def test_submit_leaves_another_programs_embedded_cluster_alone(shoal_command):
    driver = shoal_command.driver(
        """
        import time
        import shoal
        shoal.init(num_cpus=1)
        print("up")
        time.sleep(1000)
        """
    )
    driver.said("up")
    (info,) = [json.loads(p.read_text()) for p in shoal_command.home.glob("*/info.json")]
    mine = shoal_command("submit", "--", "sh", "-c", "echo $SHOAL_ADDRESS")
    assert mine.returncode == 0, mine
    assert info["head_local"] not in mine.stdout
    wait_until(lambda: len(list(shoal_command.home.glob("*/pids/*"))) == 1, 5, "the end of the submit's own cluster")
    assert shoal_command("stop").returncode == 3
    with pytest.raises(shoal.exceptions.Unavailable, check=lambda e: e.reason == "NoCluster"):
        shoal.init("auto")
    assert shoal_command.json("status")["address"] == info["head_local"]  # commands that only inspect do find the other program's cluster
    named = shoal_command("submit", "--address", info["head_local"], "--", "sh", "-c", "echo $SHOAL_ADDRESS")
    assert named.stdout.strip() == info["head_local"], named
    assert shoal_command("stop", "--address", info["head_local"]).returncode == 0
    driver.signal(signal.SIGKILL)


# ---- an interpreter that cannot be forked

THREAD = """
import sys, threading
if "shoal._zygote" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_workers_of_a_warm_interpreter_with_threads_are_fresh_ones(shoal_command, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(THREAD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    cluster = shoal_command.start(cpus=2)
    script = """
        import sys
        import shoal

        @shoal.remote(num_cpus=1)
        def started_as():
            return sys.orig_argv[1]

        if __name__ == "__main__":
            print(sys.orig_argv[1], sys.argv[1:], __name__, shoal.get(started_as.remote()))
            raise ValueError("the cause")
        """
    done = submit(shoal_command, script, "--num-workers", "1", arguments=["x"])
    shoal_command("stop", "--address", cluster.address)
    assert done.stdout == "[rank0] -c ['x'] __main__ -c\n", done
    assert (done.returncode, "ValueError: the cause" in done.stderr, "_zygote" in done.stderr) == (1, True, False), done
