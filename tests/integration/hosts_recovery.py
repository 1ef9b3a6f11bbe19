"""Runs elastic trainings on the hosts of a cluster, some of whose workers or hosts die: hosts_recovery.py HEAD CASES.

CASES is a FIFO with one case per line, each of which prints "case N has ended". A case is JSON: "out" (a file for the results of the
training, or its error), "bounds", "resource" (each worker needs one), "protect", "scale" (numbers of workers, by the step behind which the
driver asks for them), "loop" ("recovery" or "deterministic") and the configuration of that loop.
"""

import json
import sys
import time

import deterministic_loops
import recovery_loops

import shoal
from shoal.train import ScalingConfig, Trainer, WorkerLost

LOOPS = {"recovery": recovery_loops.steps_form, "deterministic": deterministic_loops.steps_form}


def loop(config):
    node = shoal.get_runtime_context().get_node_id()
    return {"node": node, **LOOPS[config.get("loop", "recovery")](config)}


def main(head: str, cases: str) -> None:
    shoal.init(address=head)
    with open(cases) as lines:
        for number, line in enumerate(lines):
            train(json.loads(line))
            print(f"case {number} has ended", file=sys.stderr, flush=True)


def wait_for_room(resource: str) -> None:
    """The workers of the training before give up their room a moment after its end. With all of it, ranks lie as they do every time."""
    while shoal.available_resources().get(resource) != shoal.cluster_resources()[resource]:
        time.sleep(0.02)


def train(case: dict) -> None:
    wait_for_room(case["resource"])
    scaling = ScalingConfig(
        tuple(case["bounds"]),
        resources_per_worker={"CPU": 0, case["resource"]: 1},
        protect=case.get("protect", True),
        **({"deterministic": True, "logical_ranks": 4} if case.get("loop") == "deterministic" else {}),
    )

    def on_report(metrics):
        if (workers := case.get("scale", {}).get(str(metrics["step"]))) is not None:
            trainer.scale(workers)

    trainer = Trainer(loop, train_loop_config=case, scaling_config=scaling, on_report=on_report)
    try:
        result = trainer.fit()
        found = {
            "history": result.metrics_history,
            "returns": result.returns,
            "changes": [{"died": c.died, "before": c.workers_before, "after": c.workers, "seconds": c.seconds} for c in result.changes],
        }
    except WorkerLost as error:
        found = {"lost": str(error)}
    with open(case["out"], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
