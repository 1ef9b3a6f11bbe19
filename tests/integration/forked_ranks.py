"""Runs a script on ranks with torchrun's variables, at the cost of one import of torch: ``python forked_ranks.py COUNT SCRIPT ARGS..``

The ranks are forked from this process. It ends with 1 when a rank failed, which takes the others along. With a COUNT of 0 the script starts
its ranks itself, by ``torch.multiprocessing.spawn``, which forks them then.
"""

import functools
import os
import runpy
import signal
import socket
import sys

import torch
import torch.distributed.fsdp  # the larger part of what each rank imports
import torch.multiprocessing


def run(rank: int, count: int, port: int, argv: list[str]) -> None:
    local = {"RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in local.items()} | {"MASTER_ADDR": "127.0.0.1"})
    torch.seed()
    run_script(argv)


def run_script(argv: list[str]) -> None:
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def main() -> int:
    count, argv = int(sys.argv[1]), sys.argv[2:]
    if count == 0:
        torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
        run_script(argv)
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.set_num_threads(1)
    ranks = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            run(rank, count, port, argv)
            return 0
        ranks.append(pid)
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
