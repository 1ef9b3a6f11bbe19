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
seen = {"words": sys.argv[1:], "folder": os.getcwd()}
seen |= {"token": os.environ.get("SHOAL_TOKEN"), "index": os.environ.get("JOB_COMPLETION_INDEX")}
rank = sys.argv[sys.argv.index("--node-rank") + 1] if "--node-rank" in sys.argv else "0"
with open(f"{here}/noted-{rank}.json", "w") as f:
    json.dump(seen, f)
"""

# The first host's end.
ENDS = """
if rank == "0":
    os.makedirs("shoal-run/train")
    with open("shoal-run/train/exit.json", "w") as f:
        json.dump({"schema": "shoal.exit/1", "exit_code": 7, "rank": 1}, f, indent=2)
    print("it trains")
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
            assert seen["index"] is None
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


def test_ssh_starts_each_host_and_shows_the_output_of_the_first(shoal_command, programs, tmp_path):
    home = tmp_path / "ho me"
    home.mkdir()
    script = tmp_path / "run.sh"
    words = ["ssh", "--hosts", "gpu1,gpu2", "--folder", str(home), "--dry-run", "--", "train.py", *HOSTILE]
    script.write_text(printed(shoal_command, *words))
    assert run(["bash", "-n", script], tmp_path, tmp_path).returncode == 0
    programs("shoal", f"#!{sys.executable}\n{NOTES}{ENDS}")
    folder = programs("ssh", '#!/bin/sh\nprintf "%s\\0" "$@" >>"$(dirname "$0")/argv"\nshift 3\nexec sh -c "$*"\n')
    words.remove("--dry-run")
    done = run([sys.executable, "-c", INIT, binary(), "launch", *words], folder, tmp_path)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "it trains\n"
    both = [noted(folder, number) for number in (0, 1)]
    assert len({seen["token"] for seen in both}) == 1
    assert re.fullmatch("[0-9a-f]{64}", both[0]["token"])
    assert both[0]["token"] not in (folder / "argv").read_text()
    for number, seen in enumerate(both):
        assert seen["folder"] == str(home)
        assert seen["words"][:3] == ["run", "--node-rank", str(number)]
        assert seen["words"][-len(HOSTILE) - 1 :] == ["train.py", *HOSTILE]


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
