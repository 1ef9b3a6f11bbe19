"""Actor figures of one module with Ray's API, in a fresh process: python first_actors.py ray|shoal --out FILE

First the start-up (import, init, the first actor's first result), then actors created one after the other, and calls per second.
"""

import argparse
import importlib
import json
import os
import sys
import time

from figures import rate

parser = argparse.ArgumentParser()
parser.add_argument("module", choices=["ray", "shoal"])
parser.add_argument("--out", required=True)
parser.add_argument("--creations", type=int, default=3)
parser.add_argument("--calls", type=int, default=1000)
parser.add_argument("--batches", type=int, default=5)
options = parser.parse_args()

start = time.perf_counter()
api = importlib.import_module(options.module)
imported = time.perf_counter()
api.init(num_cpus=2, logging_level="ERROR")
ready = time.perf_counter()


class Plain:
    def ping(self):
        return b"ok"


Remote = api.remote(num_cpus=0)(Plain)


def create():
    actor = Remote.remote()
    assert api.get(actor.ping.remote()) == b"ok"
    return actor


actor = create()
answered = time.perf_counter()
figures = {
    "version": api.__version__,
    "import": imported - start,
    "init": ready - imported,
    "import_init_first_result": answered - start,
    "init_first_result": answered - imported,
    "first_actor": answered - ready,
    "actor": [],
    "sync": [],
    "batched": [],
}
for _ in range(options.creations):
    api.kill(actor)
    time.sleep(1)  # time in which a runtime may start spare workers again
    begin = time.perf_counter()
    actor = create()
    figures["actor"].append(time.perf_counter() - begin)
api.get([actor.ping.remote() for _ in range(200)])
for _ in range(3):
    figures["sync"].append(rate(lambda: [api.get(actor.ping.remote()) for _ in range(options.calls)], options.calls))
for _ in range(options.batches):
    figures["batched"].append(rate(lambda: api.get([actor.ping.remote() for _ in range(options.calls)]), options.calls))
begin = time.perf_counter()
api.shutdown()
figures["shutdown"] = time.perf_counter() - begin
with open(options.out, "w") as f:
    json.dump(figures, f)
sys.stdout.flush()
os._exit(0)  # exit handlers are not measured
