"""Ranks that lose one of them: hosts_links.py HEAD FOLDER WORLD RESOURCE. They call collectives until an error comes.

Rank i writes its process to FOLDER/begun-i.json. It writes the time and text of its error, and the lost ranks, to FOLDER/error-i.json. The
ranks are actors, because a Trainer or a job ends all ranks soon after one has died.
"""

import json
import os
import sys
import time

import shoal
from shoal.train._ranks import environments, own_place


def write(path: str, value: dict) -> None:
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.rename(path + ".new", path)


class Rank:
    def place(self):
        return own_place()

    def run(self, folder: str, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        import torch
        import torch.distributed as dist

        import shoal.collective as sc

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank, ones = environment["RANK"], torch.ones(1 << 18)
        sc.all_reduce(ones)
        write(f"{folder}/begun-{rank}.json", {"pid": os.getpid(), "transport": sc.group().transport})
        try:
            while True:
                sc.all_reduce(ones)
                ones.fill_(1)
        except Exception as error:  # also torch's, whose text names no rank
            at = time.monotonic()
            write(f"{folder}/error-{rank}.json", {"at": at, "text": f"{type(error).__name__}: {error}", "lost": sc.group().lost})


if __name__ == "__main__":
    head, folder, world, resource = sys.argv[1:]
    shoal.init(address=head)
    made = shoal.remote(num_cpus=0, resources={resource: 1})(Rank)
    ranks = [made.remote() for _ in range(int(world))]
    given = environments(shoal.get([r.place.remote() for r in ranks]))
    runs = [r.run.remote(folder, environment) for r, environment in zip(ranks, given, strict=True)]
    shoal.wait(runs, num_returns=len(runs), timeout=300)
