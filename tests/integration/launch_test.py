"""The files that ``shoal launch`` prints run, with programs in place of srun, ssh and the command in pods."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from internals.core import binary
from launching.commands import INIT, LIMIT_S, Running

# Words that a shell, YAML or Kubernetes would take for something of theirs.
HOSTILE = [
    "a 'b' \"c\" \\ $HOME `id` $(HOME) $$",
    "",
    "\n#SBATCH --uid=0\n",
    "#x",
    "~",
    "A=1; rm -f",
    "- x: {y: [z]} # &a *a !t",
    "\x85\u2028é😀\x7f",
]

# Writes its words and what stands in some variables to a file beside it.
NOTES = """
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
seen = {"words": sys.argv[1:], "folder": os.getcwd(), "env": dict(os.environ)}
rank = sys.argv[sys.argv.index("--node-rank") + 1] if "--node-rank" in sys.argv else "0"
if "--dry-run" in sys.argv:
    print(f"shoal: host {rank} of 2 hosts", file=sys.stderr)
    sys.exit()
with open(f"{here}/noted-{rank}.json", "w") as f:
    json.dump(seen, f)
"""

# The first host's end.
ENDS = """
if rank == "0":
    os.makedirs("shoal-run/train")
    with open("shoal-run/train/exit.json", "w") as f:
        json.dump({"schema": "shoal.exit/1", "exit_code": 7, "rank": 1}, f, indent=2)
    print("it trains", flush=True)
"""

# It goes on until SIGTERM.
GOES_ON = """
import signal
print("it trains", flush=True)
signal.pause()
"""

# Runs the command here, and notes its words and those of the shells that called it. The hosts' commands come through stdin. The host
# SSH_FAILS cannot be reached for those that contain SSH_FAILS_AT.
SSH = """
import os, subprocess, sys
host, text = sys.argv[5], sys.stdin.read()
with open(os.path.join(os.path.dirname(__file__), "argv"), "a") as f:
    print(*sys.argv, file=f)
    pid = os.getppid()
    while "bash" in (words := open(f"/proc/{pid}/cmdline", errors="replace").read()).split("\\0")[0]:
        print(words, file=f)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
if host == os.environ.get("SSH_FAILS") and os.environ.get("SSH_FAILS_AT", "") in text:
    print(f"ssh: connect to host {host} port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
sys.exit(subprocess.run(["sh", "-c", *sys.argv[6:]], input=text, text=True).returncode)
"""


@pytest.fixture
def programs(tmp_path):
    """A folder in front of PATH, and a function that puts a program there."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def add(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
        return folder

    return add


def printed(command, *words: str) -> str:
    done = command("launch", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(words: list, folder: Path, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **env}
    words = list(map(str, words))
    return subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)


def noted(folder: Path, number: int = 0) -> dict:
    return json.loads((folder / f"noted-{number}.json").read_text())


def in_pod(text: str) -> str:
    """The text after the replacements of Kubernetes, whose result is the text itself for a variable that it does not know."""
    return re.sub(r"\$(\$|\(HOME\))", lambda m: "$" if m[1] == "$" else "REPLACED", text)


def test_the_batch_script_passes_each_word_on(shoal_command, programs, tmp_path):
    script = tmp_path / "run.sbatch"
    script.write_text(printed(shoal_command, "slurm", "--hosts", "2", "--time", "1h", "--dry-run", "--", "train.py", *HOSTILE))
    assert run(["bash", "-n", script], tmp_path, tmp_path).returncode == 0
    folder = programs("srun", f"#!{sys.executable}\n{NOTES}")
    done = run(["bash", script], folder, tmp_path)
    assert done.returncode == 0, done.stderr
    words = noted(folder)["words"]
    assert words[words.index("shoal") :] == ["shoal", "run", "--grace", "30", "train.py", *HOSTILE]
    assert "--ntasks-per-node=1" in words
    directives = script.read_text().split("\n\n")[0]
    assert "#SBATCH --signal=USR1@50" in directives.splitlines()
    assert "uid" not in directives


@pytest.mark.parametrize("queue", [[], ["--queue", "research"]])
def test_pods_get_each_word_and_a_number_of_their_own(shoal_command, programs, tmp_path, queue):
    kind = "kueue" if queue else "jobset"
    text = printed(shoal_command, kind, *queue, "--min", "2", "--max", "4", "--image", "i:1", "--dry-run", "--", "train.py", *HOSTILE)
    folder = programs("shoal", f"#!{sys.executable}\n{NOTES}")
    objects = list(yaml.safe_load_all(text))
    assert all(o["metadata"].get("labels") == ({"kueue.x-k8s.io/queue-name": "research"} if queue else None) for o in objects)
    jobs = [job["template"]["spec"] for job in objects[0]["spec"]["replicatedJobs"]] + [job["spec"] for job in objects[1:]]
    assert [job["completions"] for job in jobs] == [1, 1, 2]
    numbers = []
    for job in jobs:
        (pod,) = job["template"]["spec"]["containers"]
        for index in range(job["completions"]):
            words = [in_pod(word) for word in pod["command"] + pod["args"]]
            assert run(words, folder, tmp_path, JOB_COMPLETION_INDEX=str(index)).returncode == 0
            seen = noted(folder, len(numbers))
            assert "JOB_COMPLETION_INDEX" not in seen["env"]
            assert seen["words"][:5] == ["run", "--node-rank", str(len(numbers)), "--master-addr", "train-leader-0-0.train"]
            assert seen["words"][-len(HOSTILE) - 1 :] == ["train.py", *HOSTILE]
            numbers.append(len(numbers))
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("sys.exit(93)", 93), ("sys.exit(0)", 0)])
def test_a_pod_ends_with_the_runs_exit_code_unless_kubernetes_ends_it(shoal_command, programs, tmp_path, ends, code):
    text = printed(shoal_command, "jobset", "--hosts", "2", "--image", "i:1", "--dry-run", "train.py")
    (job,) = (job["template"]["spec"] for job in yaml.safe_load(text)["spec"]["replicatedJobs"])
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [93]
    (pod,) = job["template"]["spec"]["containers"]
    words = [in_pod(word) for word in pod["command"] + pod["args"]]
    folder = programs("shoal", f"#!{sys.executable}\nimport sys\n{ends}\n")
    assert run(words, folder, tmp_path, JOB_COMPLETION_INDEX="1").returncode == code
    leaves = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
    programs("shoal", f"#!{sys.executable}\n{leaves}print('up', flush=True)\nsignal.pause()\n")
    running = Running(words, {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "1"}, tmp_path)
    running.said("up")
    running.signal(signal.SIGTERM)
    assert running.code() == 143
    assert "saved" in running.out


@pytest.fixture
def ssh(shoal_command, programs, tmp_path):
    """Programs in place of ssh and the hosts' command, and a function that launches with them. All hosts have one folder, `home`."""
    home = tmp_path / "ho me"
    home.mkdir()
    (home / "train.py").touch()
    folder = programs("ssh", f"#!{sys.executable}\n{SSH}")

    def launch(*words, shoal: str = NOTES + ENDS, script: tuple = ("--", "train.py"), **env: str) -> Running:
        programs("shoal", f"#!{sys.executable}\n{shoal}")
        line = [sys.executable, "-c", INIT, binary(), "launch", "ssh", "--hosts", "gpu1,gpu2", "--folder", home, *words, *script]
        env = {"PATH": f"{folder}:{os.environ['PATH']}", **env}
        return shoal_command.program(list(map(str, line)), **env)

    launch.home, launch.programs = home, folder
    return launch


def test_ssh_starts_each_host_and_shows_the_output_of_the_first(ssh):
    words = ["--env", "NOTE=it's $(id)", "--env", "HF_TOKEN", "--port", "7461"]
    job = ssh(*words, script=("--", "train.py", *HOSTILE), SHOAL_FSDP="1", HF_TOKEN="ab'c")
    assert job.code() == 7, job.err
    assert job.out == "it trains\n"
    both = [noted(ssh.programs, number) for number in (0, 1)]
    (token,) = {seen["env"]["SHOAL_TOKEN"] for seen in both}
    assert re.fullmatch("[0-9a-f]{64}", token)
    argv = (ssh.programs / "argv").read_text()
    assert token not in argv
    assert "ab" not in argv.replace(str(ssh.programs), "")
    assert "it's" not in argv
    assert "/proc/self/fd/" in argv  # the words of the shells are among them
    for number, seen in enumerate(both):
        assert seen["folder"] == str(ssh.home)
        assert seen["words"][:3] == ["run", "--node-rank", str(number)]
        assert seen["words"][seen["words"].index("--port") + 1] == "7461"
        assert seen["words"][-len(HOSTILE) - 1 :] == ["train.py", *HOSTILE]
        assert {n: seen["env"].get(n) for n in ("NOTE", "HF_TOKEN", "SHOAL_FSDP")} == {
            "NOTE": "it's $(id)",
            "HF_TOKEN": "ab'c",
            "SHOAL_FSDP": "1",
        }


def test_a_file_for_ssh_has_no_value_of_an_inherited_secret(shoal_command, tmp_path):
    words = ["launch", "ssh", "--hosts", "a", "--env", "HF_TOKEN", "--dry-run", "x.py"]
    done = shoal_command(*words, env=shoal_command.env(HF_TOKEN="ab1c"))
    assert "HF_TOKEN" in done.stdout
    assert "ab1c" not in done.stdout
    later = run(["bash", "-c", done.stdout], tmp_path, tmp_path)
    assert later.returncode == 2
    assert later.stderr == "shoal: the variable HF_TOKEN is not set here\n"


@pytest.mark.parametrize("kind", ["slurm", "jobset", "kueue"])
def test_variables_stand_in_the_file(shoal_command, kind):
    more = {"slurm": [], "jobset": ["--image", "i:1"], "kueue": ["--image", "i:1", "--queue", "q"]}[kind]
    words = ["launch", kind, *more, "--env", "NOTE=a b", "--env", "OWN", "--dry-run", "train.py"]
    text = shoal_command(*words, env=shoal_command.env(OWN="c d", SHOAL_FSDP="1")).stdout
    if kind == "slurm":  # sbatch passes SHOAL_FSDP on
        assert re.findall(r"export (\S+)='(.*)'", text) == [("NOTE", "a b"), ("OWN", "c d")]
        return
    (pod,) = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    variables = {v["name"]: v["value"] for v in pod["env"]}
    assert {n: variables.get(n) for n in ("NOTE", "OWN", "SHOAL_FSDP")} == {"NOTE": "a b", "OWN": "c d", "SHOAL_FSDP": "1"}


def test_ssh_starts_no_host_if_one_cannot_be_reached(ssh):
    job = ssh(SSH_FAILS="gpu2")
    assert job.code() == 1
    assert "shoal: host gpu2: ssh: connect to host gpu2 port 22: Connection refused ('ssh gpu2 true' has to work" in job.err
    assert "no host was started" in job.err
    assert "host gpu1" not in job.err
    assert not list(ssh.home.glob("*.pid"))


def test_ssh_ends_the_hosts_that_it_started_if_one_fails(ssh):
    job = ssh(shoal=NOTES + GOES_ON, SSH_FAILS="gpu2", SSH_FAILS_AT="nohup")
    assert job.code() == 1, job.err
    assert "shoal: host gpu2: ssh: connect" in job.err
    assert "the hosts that were started have ended" in job.err
    assert not list(ssh.home.glob("*.pid"))
    assert str(ssh.home) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_ssh_leaves_an_earlier_run_that_lives_alone(ssh):
    first = ssh(shoal=NOTES + GOES_ON)
    first.said("it trains")
    pid = (ssh.home / "train-0.pid").read_text()
    second = ssh()
    assert second.code() == 1
    assert f"host gpu1: an earlier run train lives there ({ssh.home}/train-0.pid): end it by 'kill {pid.strip()}'" in second.err
    assert (ssh.home / "train-0.pid").read_text() == pid
    other = ssh("--name", "other")
    assert "lives there" not in (other.err, other.code())[0]
    for file in ssh.home.glob("train-*.pid"):
        os.kill(int(file.read_text()), signal.SIGTERM)
    first.code()
    third = ssh()  # over the files of processes that have ended
    assert third.code() == 7, third.err


@pytest.mark.parametrize(
    ("shoal", "text"),
    [
        ("/no/such/shoal", "there is no command /no/such/shoal"),
        ("/bin", "there is no command /bin"),
        ("/bin/true", "/bin/true is no command of Shoal"),
    ],
)
def test_ssh_names_the_hosts_that_lack_the_command(ssh, shoal, text):
    job = ssh("--shoal", shoal)
    assert job.code() == 1
    for host in ("gpu1", "gpu2"):
        (line,) = [line for line in job.err.splitlines() if f"host {host}:" in line]
        assert text in line
        assert "--shoal PATH" in line
    assert len(job.err.splitlines()) == 3, job.err


@pytest.mark.parametrize(("lacks", "text"), [("folder", "cannot enter the folder"), ("script", "there is no script train.py in ")])
def test_ssh_names_what_a_host_lacks(ssh, lacks, text):
    (ssh.home / "train.py").unlink()
    if lacks == "folder":
        ssh.home.rmdir()
    job = ssh()
    assert job.code() == 1
    assert job.err.count(text) == 2, job.err


def test_json_has_the_text(shoal_command):
    words = ["slurm", "--hosts", "2", "--dry-run", "train.py"]
    assert json.loads(printed(shoal_command, words[0], "--json", *words[1:]))["text"] == printed(shoal_command, *words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["slurm", "--hosts", "2", "--min", "2", "--max", "4", "x.py"], "--hosts fixes the number of hosts"),
        (["slurm", "--min", "2", "x.py"], "--min and --max belong together"),
        (["slurm", "--time", "30", "x.py"], "--time 30 is not a limit"),
        (["slurm", "--time", "20s", "x.py"], "the run would never train"),
        (["slurm", "--image", "i:1", "x.py"], "--image"),
        (["jobset", "x.py"], "pods need an image"),
        (["kueue", "--image", "i:1", "x.py"], "kueue needs the name of a queue"),
        (["ssh", "--hosts", "2", "x.py"], "ssh needs the names of the hosts"),
        (["slurm"], "nothing to run"),
        (["slurm", "--env", "1=2", "x.py"], "--env 1=2 is not NAME=VALUE or NAME"),
        (["slurm", "--env", "NO_SUCH_VARIABLE", "x.py"], "the variable NO_SUCH_VARIABLE is not set here"),
        (["slurm", "--env", "SHOAL_FSDP=maybe", "x.py"], "SHOAL_FSDP is 1, true, on or yes, or 0"),
        (["slurm", "--env", "HF_TOKEN=x", "x.py"], "sbatch passes the caller's environment on"),
    ],
)
def test_contradictions_are_refused(shoal_command, words, text):
    done = shoal_command("launch", *words)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("words", "program"), [(["slurm", "x.py"], "sbatch"), (["ssh", "--hosts", "a,b", "x.py"], "ssh")])
def test_a_missing_program_is_named(shoal_command, tmp_path, words, program):
    (tmp_path / "bash").symlink_to("/bin/bash")
    done = shoal_command("launch", *words, env={**shoal_command.env(), "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == f"shoal: there is no {program} on PATH; --dry-run prints the file\n"


def test_objects_of_kubernetes_are_the_users_to_submit(shoal_command):
    done = shoal_command("launch", "jobset", "--image", "i:1", "x.py")
    assert done.returncode == 0
    assert "kubectl create -f FILE" in done.stderr
