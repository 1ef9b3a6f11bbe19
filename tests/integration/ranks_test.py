"""Gangs of ranks: torchrun's variables, output prefixes, and the end of a gang when one rank fails."""

import os
import re
import signal

import pytest
from launching.commands import Command
from launching.leftovers import alive, wait_until

WARM = "import time; print('warm'); time.sleep(1000)"


@pytest.fixture(scope="module")
def shoal_command(module_home):
    """A cluster in which a rank of another job waits, so that an interpreter with torch imported stays for all tests."""
    command = Command(module_home)
    cluster = command.start(cpus=9)
    keeper = command.popen("submit", "--num-workers", "1", command.script(WARM, "keeper.py"))
    keeper.said("warm")
    yield command
    assert command("stop", "--address", cluster.address).returncode == 0
    assert keeper.code() != 0
    command.end()


def submit(shoal_command, text, *options, arguments=()):
    return shoal_command("submit", *options, shoal_command.script(text), *arguments)


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
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_submit_exits_with_the_ranks_code(shoal_command, text, code):
    done = submit(shoal_command, text, "--num-workers", "1")
    assert done.returncode == code, done


def test_a_rank_is_main_and_its_traceback_begins_in_its_script(shoal_command):
    done = submit(
        shoal_command,
        """
        import sys
        print(__name__, sys.argv[1:], __file__ == sys.argv[0])
        import pickle
        class Mine: pass
        assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
        def inner():
            raise ValueError("the cause")
        inner()
        """,
        "--num-workers",
        "1",
        arguments=["a", "-b"],
    )
    assert done.stdout == "[rank0] __main__ ['a', '-b'] True\n"
    assert "_zygote" not in done.stderr
    assert "[rank0] ValueError: the cause" in done.stderr.splitlines()


def test_a_rank_may_use_multiprocessing_of_every_kind(shoal_command):
    script = """
        import multiprocessing

        def square(x):
            return x * x

        if __name__ == "__main__":
            for kind in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(kind).Pool(1) as pool:
                    print(kind, pool.map(square, [3]))
        """
    done = submit(shoal_command, script, "--num-workers", "1")
    assert done.stdout == "[rank0] fork [9]\n[rank0] spawn [9]\n[rank0] forkserver [9]\n", done


TORCHRUN = """
import os
names = [
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
]
print(" ".join(os.environ[n] for n in names))
print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RUN_ID"])
"""


def test_ranks_have_torchruns_variables_and_output_prefixes(shoal_command):
    done = submit(shoal_command, TORCHRUN, "--num-workers", "2")
    assert done.returncode == 0, done
    lines = sorted(done.stdout.splitlines())
    assert "[rank0] 0 2 0 2 0 1 0 2 default 0 0" in lines
    assert "[rank1] 1 2 1 2 0 1 1 2 default 0 0" in lines
    meeting = {line.partition(" ")[2] for line in lines if "127.0.0.1" in line}
    assert len(meeting) == 1
    assert 0 < int(meeting.pop().split()[1]) < 65536


def test_ranks_meet_in_a_process_group(shoal_command):
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        print("sum", int(x))
        dist.destroy_process_group()
        """
    done = submit(shoal_command, script, "--num-workers", "2")
    assert done.returncode == 0, done
    assert sorted(line for line in done.stdout.splitlines() if "sum" in line) == ["[rank0] sum 3", "[rank1] sum 3"]


FAILING = """
import os, sys, time
rank = int(os.environ["RANK"])
pid = os.fork()
if pid == 0:
    time.sleep(1000)
print("pids", os.getpid(), pid)
if rank == 1:
    while len(os.listdir(sys.argv[1])) < 3:
        open(f"{sys.argv[1]}/{rank}", "w").close()
        time.sleep(0.01)
    raise RuntimeError("the first cause")
open(f"{sys.argv[1]}/{rank}", "w").close()
try:
    time.sleep(1000)
finally:
    print("never seen")
"""


def test_a_failing_rank_is_named_and_ends_the_others(shoal_command, tmp_path):
    done = submit(shoal_command, FAILING, "--num-workers", "3", arguments=[tmp_path])
    assert done.returncode == 1, done
    last = done.stderr.rstrip().splitlines()
    assert "[rank1] RuntimeError: the first cause" in last
    assert re.search(r"error\[Unavailable/WorkerDied\]: rank 1 \(pid \d+\) exited with code 1", done.stderr), done
    assert "rank 0 (pid" not in done.stderr
    pids = [int(p) for line in done.stdout.splitlines() if " pids " in line for p in line.split()[2:]]
    assert len(pids) == 6
    wait_until(lambda: not any(alive(p) for p in pids), 5, "the end of all ranks and their children")


def test_a_killed_rank_is_named_and_ends_the_others(shoal_command):
    job = shoal_command.popen(
        "submit",
        "--num-workers",
        "2",
        shoal_command.script("import os, time; print('up', os.environ['RANK'], os.getpid()); time.sleep(1000)"),
    )
    job.said("[rank0] up 0")
    job.said("[rank1] up 1")
    victim = int(re.search(r"\[rank0\] up 0 (\d+)", job.out)[1])
    os.kill(victim, signal.SIGKILL)
    assert job.code() == 137
    assert re.search(rf"rank 0 \(pid {victim}\) was killed by SIGKILL", job.err), job.err


def test_a_stubborn_rank_is_killed_when_another_fails(shoal_command):
    script = """
        import os, signal, time
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("ready", "w").close()
            while True:
                time.sleep(1000)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        raise SystemExit(9)
        """
    done = submit(shoal_command, script, "--num-workers", "2")
    assert done.returncode == 9, done


def test_gangs_are_placed_completely_or_not_at_all(shoal_command):
    first = shoal_command.popen("submit", "--num-workers", "6", "--", "sh", "-c", "echo up; sleep 1000")
    wait_until(lambda: first.out.count("up") == 6, 20)
    second = shoal_command.popen("submit", "--num-workers", "4", "--", "echo", "second")
    second.said("pending")
    assert "second" not in second.out
    first.signal(signal.SIGTERM)
    assert first.code() == 143
    assert second.code() == 0
    assert second.out.count("second") == 4
