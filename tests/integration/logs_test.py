"""Output of workers: of an earlier process, of a lost node, as one stream, and folded on a terminal."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from internals.core import binary
from launching.leftovers import wait_until

DRIVER = """
import os, signal, sys, time
import shoal
shoal.init(address="auto")

@shoal.remote(max_restarts=1, num_cpus=1)
class Speaker:
    def say(self, text):
        print(text, flush=True)
        print("err " + text, file=sys.stderr, flush=True)
        return os.getpid()
"""


@pytest.fixture
def cluster(shoal_command):
    yield shoal_command.start(cpus=4)
    shoal_command.json("stop")


def test_logs_of_the_previous_process_are_kept(shoal_command, cluster):
    driver = shoal_command.driver(
        DRIVER
        + """
actor = Speaker.remote()
first = shoal.get(actor.say.remote("from the first"))
print("id", actor._actor_id, flush=True)
os.kill(first, signal.SIGKILL)
while True:
    try:
        assert shoal.get(actor.say.remote("from the second"), timeout=60) != first
        break
    except shoal.exceptions.ActorUnavailableError:
        pass
print("restarted", flush=True)
time.sleep(600)
"""
    )
    driver.said("restarted")
    actor = next(line.split()[1] for line in driver.out.splitlines() if line.startswith("id "))
    now = shoal_command("logs", actor)
    assert "from the second" in now.stdout
    assert "from the first" not in now.stdout
    before = shoal_command("logs", actor, "--previous")
    assert "from the first" in before.stdout
    assert "from the second" not in before.stdout
    only_err = shoal_command("logs", actor, "--previous", "--err", "--tail", "1")
    assert (only_err.stdout, only_err.stderr) == ("", "(Speaker) err from the first\n")
    driver.signal(signal.SIGKILL)
    done = shoal_command("logs", "--previous")
    assert done.returncode == 1
    assert "--previous" in done.stderr


def test_logs_accepts_rays_notation_of_ids_and_pids(shoal_command, cluster):
    driver = shoal_command.driver(
        DRIVER
        + """
actor = Speaker.remote()
print("id", actor._actor_id, shoal.get(actor.say.remote("from an actor")), flush=True)
shoal.get(actor.say.remote("a zero\\0byte"))
print("said all", flush=True)
time.sleep(600)
"""
    )
    driver.said("said all")
    _, actor, pid = next(line for line in driver.out.splitlines() if line.startswith("id ")).split()
    out = "(Speaker) from an actor\n(Speaker) a zero\0byte\n"
    err = "(Speaker) err from an actor\n(Speaker) err a zero\0byte\n"
    node = shoal_command.rows("nodes")[0]["id"]
    for words in (("actor", "--id", actor), ("actor", "--pid", pid), ("worker", "--pid", pid), ("worker", "--pid", pid, "--node-id", node)):
        said = shoal_command("logs", *words)
        assert (said.stdout, said.stderr) == (out, err), said
    assert shoal_command("logs", "actor", "--id", actor, "--err").stdout == ""
    assert shoal_command("logs", "actor", "--id", actor, "--tail", "0").stdout == ""
    for words, code, text in (
        (("actor",), 2, "--id"),
        (("job", "--pid", pid), 2, ""),
        (("worker", "--pid", "1"), 3, "no process 1"),
        (("worker", "--pid", pid, "--node-ip", "10.9.8.7"), 3, f"no process {pid}"),
        (("job", "--id", actor), 3, "no job"),
        (("task", "--id", "5f"), 1, "32 hexadecimal digits"),
        (("task", "--id", "5f" * 16), 3, "no task 5f5f"),
    ):
        done = shoal_command("logs", *words)
        assert (done.returncode, done.stdout) == (code, ""), (words, done)
        assert text in done.stderr
    done = shoal_command("job", "submit", "--submission-id", "mine", "--", "echo from a job")
    assert done.returncode == 0, done
    assert shoal_command("logs", "job", "--id", "mine").stdout == "(driver) from a job\n"
    driver.signal(signal.SIGKILL)


def test_logs_follow_an_actor_or_a_process_to_its_end(shoal_command, cluster):
    flag = shoal_command.home.parent / "go"
    driver = shoal_command.driver(
        DRIVER
        + """
actor, other = Speaker.options(max_restarts=0).remote(), Speaker.remote()
print("id", actor._actor_id, shoal.get(actor.say.remote("first")), flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
shoal.get([other.say.remote("of another"), actor.say.remote("last")])
shoal.kill(actor)
time.sleep(600)
""",
        GO=str(flag),
    )
    driver.said("id ")
    _, actor, pid = next(line for line in driver.out.splitlines() if line.startswith("id ")).split()
    both = [shoal_command.popen("logs", *words, "--follow") for words in (("actor", "--id", actor), ("worker", "--pid", pid))]
    only_err = shoal_command.popen("logs", "actor", "--pid", pid, "-f", "--err")
    for following in (*both, only_err):
        following.said("(Speaker) err first")
    for following in both:
        following.said("(Speaker) first")
    flag.touch()
    assert [following.code() for following in (*both, only_err)] == [0, 0, 0]
    out, err = "(Speaker) first\n(Speaker) last\n", "(Speaker) err first\n(Speaker) err last\n"
    assert [(following.out, following.err) for following in (*both, only_err)] == [(out, err), (out, err), ("", err)]
    driver.signal(signal.SIGKILL)


def test_logs_shows_the_output_of_one_call(shoal_command, cluster):
    driver = shoal_command.driver(
        """
import os, signal, sys, tempfile, time
import shoal
from shoal import get_runtime_context
shoal.init(address="auto")

@shoal.remote(num_cpus=1)
def speak(text, lines=1):
    for i in range(lines):
        print(text, i)
    print("err " + text, file=sys.stderr)
    return get_runtime_context().get_task_id()

@shoal.remote(num_cpus=1)
def whisper(text):
    print(text, end=" ")
    print("softly")
    return get_runtime_context().get_task_id()

@shoal.remote(num_cpus=1)
def redirects(text):
    kept = os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        print(text, flush=True)
        os.dup2(kept, 1)
        file.seek(0)
        return file.read().strip()

@shoal.remote
class Speaker:
    def say(self, text):
        print(text)
        return get_runtime_context().get_task_id()

assert shoal.get(redirects.remote("for nobody else")) == "for nobody else"
actor, several = Speaker.remote(), Speaker.options(max_concurrency=2).remote()
tasks = [shoal.get(f.remote(text)) for f, text in ((speak, "one"), (speak, "two"), (whisper, "three"))]
tasks += [shoal.get(actor.say.remote("four")), shoal.get(actor.say.remote("five")), shoal.get(several.say.remote("six"))]
print("ids", *tasks, flush=True)
time.sleep(600)
"""
    )
    driver.said("ids ")
    tasks = next(line.split()[1:] for line in driver.out.splitlines() if line.startswith("ids "))
    texts = [("(speak) one 0\n", "(speak) err one\n"), ("(speak) two 0\n", "(speak) err two\n"), ("(whisper) three softly\n", "")]
    texts += [("(Speaker.say) four\n", ""), ("(Speaker.say) five\n", "")]
    assert len(tasks) == len(texts) + 1
    for task, (out, err) in zip(tasks[:-1], texts, strict=True):

        def printed(task=task):
            done = shoal_command("logs", "task", task)
            return done.stdout, done.stderr

        wait_until(lambda printed=printed, expected=(out, err): printed() == expected, 60, f"what {task} printed")
    assert shoal_command("logs", "task", "--id", tasks[0], "--err").stdout == ""
    wait_until(lambda: "shoal logs worker --pid" in shoal_command("logs", "task", tasks[5]).stderr, 60, "that nobody knows what it printed")
    assert shoal_command("logs", "task", tasks[0], "-f").returncode == 1

    def shown():
        return {(line.partition(" pid=")[0], line.partition(") ")[2]) for line in driver.out.splitlines()}

    wait_until(lambda: {("(speak", "one 0"), ("(whisper", "three softly"), ("(Speaker", "five")} <= shown(), 60, "lines with names")
    assert "\x01" not in driver.out + driver.err
    driver.signal(signal.SIGKILL)


# A driver whose calls write in many ways. It prints the calls' ids in the order of the calls.
WRITERS = """
import ctypes, logging, os, subprocess, sys, time
import shoal
shoal.init(address="auto", logging_config=shoal.LoggingConfig(log_level="WARNING"))

def call(function):
    return shoal.remote(num_cpus=1)(function)

@call
def noisy():
    os.write(2, b"noise of a library\\n")
    assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
    print("beside noise")
    return shoal.get_runtime_context().get_task_id()

@call
def logs(text):
    logging.warning(text)
    return shoal.get_runtime_context().get_task_id()

@call
def breaks_off():
    print("a line", flush=True)
    os.write(1, b"no end")
    return shoal.get_runtime_context().get_task_id()

@call
def ends():
    print("after it")
    return shoal.get_runtime_context().get_task_id()

@call
def größe():
    encoding = sys.stdout.encoding
    sys.stdout.reconfigure(encoding="ascii")
    print("in ASCII")
    sys.stdout.reconfigure(encoding=encoding)
    return shoal.get_runtime_context().get_task_id()

class Loud:
    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        print("while it is loaded")

@call
def writes_bytes(last):
    print("text", end="", flush=False)
    sys.stdout.buffer.write(b" and bytes of " + last + b"\\n")
    sys.stdout.buffer.flush()
    return shoal.get_runtime_context().get_task_id()

@call
def takes(what):
    return shoal.get_runtime_context().get_task_id()

@call
def prints_in_c():
    library = ctypes.CDLL(None)
    library.printf(b"of printf\\n")
    library.fflush(None)
    subprocess.run("echo of another process; echo its error >&2", shell=True)
    sys.stdout.buffer.raw.write(b"unbuffered\\n")
    return shoal.get_runtime_context().get_task_id()

@call
def leaves_open():
    print("open", end="")
    return shoal.get_runtime_context().get_task_id()

@call
def writes():
    os.write(1, b"of write\\n")
    return shoal.get_runtime_context().get_task_id()

calls = (noisy, ()), (logs, ("one",)), (logs, ("two",)), (breaks_off, ()), (ends, ()), (größe, ()), (takes, (Loud(),))
calls += (writes_bytes, (b"one",)), (writes_bytes, (b"two",)), (prints_in_c, ()), (leaves_open, ()), (writes, ())
print("ids", *[shoal.get(f.remote(*args)) for f, args in calls], flush=True)
time.sleep(600)
"""

# The stdout and stderr of a call of WRITERS, by the call's position.
PRINTED = {
    0: ("(noisy) beside noise\n", "(noisy) noise of a library\n"),
    3: ("(breaks_off) a line\n(breaks_off) no end\n", ""),
    4: ("(ends) after it\n", ""),
    5: ("(größe) in ASCII\n", ""),
    6: ("(takes) while it is loaded\n", ""),
    7: ("(writes_bytes) text and bytes of one\n", ""),
    8: ("(writes_bytes) text and bytes of two\n", ""),
    9: ("(prints_in_c) of printf\n(prints_in_c) of another process\n(prints_in_c) unbuffered\n", "(prints_in_c) its error\n"),
    10: ("(leaves_open) open\n", ""),
    11: ("(writes) of write\n", ""),
}


def test_output_from_every_writer_belongs_to_its_call(shoal_command, cluster):
    """Covers loggers created before the call, C code, other processes, and text after a line without a newline."""
    driver = shoal_command.driver(WRITERS)
    driver.said("ids ")
    tasks = next(line.split()[1:] for line in driver.out.splitlines() if line.startswith("ids "))
    assert len(tasks) == 12

    def printed(task):
        done = shoal_command("logs", "task", task)
        assert done.returncode == 0, done
        return done.stdout, done.stderr

    for k, expected in PRINTED.items():
        wait_until(lambda task=tasks[k], expected=expected: printed(task) == expected, 60, f"what {tasks[k]} printed")
    for k, text, other in ((1, "-- one", "-- two"), (2, "-- two", "-- one")):
        wait_until(lambda task=tasks[k], text=text: text in printed(task)[1], 60, f"what {tasks[k]} logged")
        assert other not in printed(tasks[k])[1]
        assert printed(tasks[k])[1].count("\n") == 1
    wait_until(lambda: "(takes pid=" in driver.out and ") while it is loaded" in driver.out, 60, "a line with its name")
    assert "\x01" not in driver.out + driver.err
    driver.signal(signal.SIGKILL)


def test_logs_shows_files_of_the_session(shoal_command, cluster):
    files = shoal_command("logs", "cluster").stdout.split()
    assert {"head.log", "node.log"} <= {f.partition(".")[0].partition("-")[0] + ".log" for f in files}, files
    (head,) = [f for f in files if f.startswith("head") and f.endswith(".log")]
    text = (cluster.session / "logs" / head).read_text().splitlines(keepends=True)
    assert text[0] in shoal_command("logs", "cluster", head).stdout
    assert shoal_command("logs", head, "--tail", "1").stdout.count("\n") == 1
    assert shoal_command.json("logs", "cluster", "no-such*")["files"] == []


def test_output_outlives_its_node(shoal_command, cluster):
    first = shoal_command.rows("nodes")[0]["id"]
    second = shoal_command.json("start", "--address", cluster.address, "--num-cpus", "1")["node"]
    shoal_command.json("cordon", first)
    assert shoal_command("submit", "--num-cpus", "1", "--", "echo", "from a node that went").returncode == 0
    (job,) = shoal_command.rows("jobs")
    (node,) = [n for n in shoal_command.rows("nodes") if n["id"] == second]
    os.kill(node["pid"], signal.SIGKILL)
    wait_until(lambda: "DEAD" in [n["state"] for n in shoal_command.rows("nodes")], 20, "the node's death")
    assert "from a node that went" in shoal_command("logs", job["id"]).stdout


FOLDED = """
speakers = [Speaker.remote() for _ in range(3)]
shoal.get([s.__ray_ready__.remote() for s in speakers])  # what is folded comes within two seconds
shoal.get([s.say.remote("the same") for s in speakers])
"""


def on_a_terminal(shoal_command, text: str, **env: str) -> str:
    """Runs a driver whose output is a terminal, and returns that output."""
    script = shoal_command.script(DRIVER + text, "terminal.py")
    return shown_by([sys.executable, str(script)], shoal_command.env(**env))


def shown_by(argv: list[str], env: dict[str, str]) -> str:
    """Runs a program on a terminal, and returns its output."""
    ours, theirs = pty.openpty()
    pid = os.fork()
    if pid == 0:
        for number in (0, 1, 2):
            os.dup2(theirs, number)
        os.execve(argv[0], argv, env)
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the driver's end of the terminal is closed
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    assert os.waitpid(pid, 0)[1] == 0, said
    return said.decode().replace("\r\n", "\n")


def test_equal_lines_of_several_processes_are_folded_on_a_terminal(shoal_command, cluster):
    text = on_a_terminal(shoal_command, FOLDED)
    lines = [line for line in text.splitlines() if line.startswith("(Speaker pid=") and ") the same" in line]
    assert len(lines) == 2, text
    assert "×3" in lines[1]
    each = on_a_terminal(shoal_command, FOLDED, SHOAL_DEDUP_LOGS="0")
    assert len([line for line in each.splitlines() if line.endswith(") the same")]) == 3, each


def test_lines_are_never_folded_without_a_terminal(shoal_command, cluster):
    driver = shoal_command.driver(DRIVER + FOLDED)
    assert driver.code() == 0, driver.err
    assert driver.out.count(") the same\n") == 3
    assert driver.err.count(") err the same\n") == 3


COLOURED = r"""
evil = "\x1b]0;T\a\x1b[2J\u202e"
@shoal.remote
def paint(text):
    print(text, flush=True)
    print("err " + text, file=sys.stderr, flush=True)
shoal.get(paint.remote("\r\x1b[32m 10%\x1b[0m\x1b[K\b " + evil))
"""


def test_a_terminal_shows_workers_colours_and_obeys_nothing_else(shoal_command, cluster):
    kept, evil, escaped = "\r\x1b[32m 10%\x1b[0m\x1b[K\b ", "\x1b]0;T\a\x1b[2J\u202e", r"\x1b]0;T\x07\x1b[2J\u202e"
    text = on_a_terminal(shoal_command, COLOURED)
    for line in (") " + kept + escaped + "\n", ") err " + kept + escaped + "\n"):
        assert line in text
    assert "\x1b]" not in text
    logs = [binary(), "logs", shoal_command.rows("jobs")[0]["id"]]
    submitted = [binary(), "submit", str(shoal_command.script(DRIVER + COLOURED, "coloured.py"))]
    for command in (logs, submitted):
        text = shown_by(command, shoal_command.env())
        assert kept + escaped + "\n" in text, command
        assert "\x1b]" not in text
    for command in (logs, submitted):  # a file gets the bytes
        assert (kept + evil + "\n").encode() in subprocess.run(command, env=shoal_command.env(), capture_output=True, check=True).stdout
