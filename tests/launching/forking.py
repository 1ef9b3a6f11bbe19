"""Runs scripts on ranks with torchrun's variables, at the cost of one import of torch: ``python -m launching.forking COUNT SCRIPT ARGS..``

The ranks are forked from this process. It exits with 1 when a rank fails, which ends the others. With a COUNT of 0 the script starts
its ranks itself by ``torch.multiprocessing.spawn``, which then forks them, or by ``fork_ranks``.

``python -m launching.forking torchrun OPTIONS.. SCRIPT ARGS..`` is torchrun, its agent and its report, with two ranks that were
forked from it before it had threads.

``python -m launching.forking serve MODULES..`` is the process of ``ranks.ForkedRanks``.
"""

import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import torch
import torch._dynamo  # torch's optimizers import this module
import torch.distributed.fsdp  # most of the import time of each rank
import torch.multiprocessing

from launching.ranks import free_port


def run(rank: int, count: int, port: int, argv: list[str]) -> None:
    local = {"RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in local.items()} | {"MASTER_ADDR": "127.0.0.1"})
    torch.seed()
    run_script(argv)


def run_script(argv: list[str]) -> None:
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def start(count: int, argv: list[str]) -> int:
    """Runs the script on `count` forked ranks. Returns the exit code, in the ranks as well."""
    if count == 0:
        torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
        run_script(argv)
        return 0
    port = free_port()
    torch.set_num_threads(1)
    ranks, failed = {}, False
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            run(rank, count, port, argv)
            return 0
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status and not failed:
            failed = True
            print(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return int(failed)


def fork_ranks(world: int, main: Callable[[int], None]) -> None:
    """Calls ``main`` with each rank in a process of its own. For scripts that start their ranks themselves, since one of them may die.
    Exits with 1 if a rank failed; at most one may have been killed."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                main(rank)
                code = 0
            except BaseException:
                print(f"rank {rank}:", file=sys.stderr)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    unexpected = [c for c in codes if c not in (0, -signal.SIGKILL)]
    sys.exit(1 if unexpected or codes.count(-signal.SIGKILL) > 1 else 0)


class Seed:
    """A process that is forked early and becomes a rank when torchrun asks for one. It has those methods of Popen that torchrun calls."""

    def __init__(self):
        asked, self._ask = os.pipe()
        self.pid = os.fork()
        self.code = None
        if self.pid == 0:
            os.close(self._ask)
            with open(asked) as file:
                request = file.readline()
            if not request:  # no request came: torchrun has ended
                os._exit(0)
            argv, env = json.loads(request)
            os.environ.clear()
            os.environ.update(env)
            torch.set_num_threads(1)
            torch.seed()
            run_script(argv)
            sys.exit()
        os.close(asked)

    def grow(self, argv: list[str], env: dict[str, str]) -> "Seed":
        with open(self._ask, "w") as file:
            file.write(json.dumps([argv, env]) + "\n")
        return self

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.01)
        return self.code


def torchrun(options: list[str]) -> None:
    from torch.distributed import run as torchs
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    seeds = []
    for _ in range(2):
        seeds.append(Seed())
        os.setpgid(seeds[-1].pid, seeds[-1].pid)  # a process group of its own, because torchrun signals the rank's group
    # `words` is the rank's command line: interpreter, -u, script, ..
    subprocess_handler.SubprocessHandler._popen = lambda _, words, env: seeds.pop(0).grow(words[2:], env)
    torchs.main(["--standalone", "--nproc-per-node", "2", *options])


def serve(modules: list[str]) -> int:
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while line := sys.stdin.readline():
        request = json.loads(line)
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
        pid = os.fork()
        if pid == 0:
            become(request)
            return start(request["count"], request["argv"])
        signal.signal(signal.SIGALRM, lambda *_, group=pid: os.killpg(group, signal.SIGKILL))
        signal.alarm(request["limit_s"])
        _, status = os.waitpid(pid, 0)
        signal.alarm(0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


def become(request: dict) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, path, flags in ((0, os.devnull, 0), (1, request["out"], os.O_WRONLY), (2, request["err"], os.O_WRONLY)):
        file = os.open(path, flags | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(sys.argv[2:]))
    if sys.argv[1] == "torchrun":
        sys.exit(torchrun(sys.argv[2:]))
    sys.exit(start(int(sys.argv[1]), sys.argv[2:]))
