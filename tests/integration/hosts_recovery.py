"""Runs an elastic training on the hosts of a cluster, some of whose workers or hosts die: hosts_recovery.py HEAD OUT CASE.

CASE is JSON: "bounds", "resource" (each worker needs one), "protect", "scale" (numbers of workers, by the step behind which the driver
asks for them), "loop" ("recovery" or "deterministic") and the configuration of that loop. OUT receives the training's results, or its
error.
"""

import json
import sys

import deterministic_loops
import recovery_loops

import shoal
from shoal.train import ScalingConfig, Trainer, WorkerLost

LOOPS = {"recovery": recovery_loops.steps_form, "deterministic": deterministic_loops.steps_form}


def loop(config):
    node = shoal.get_runtime_context().get_node_id()
    return {"node": node, **LOOPS[config.get("loop", "recovery")](config)}


def main(head: str, out: str, case: str) -> None:
    case = json.loads(case)
    shoal.init(address=head)
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
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
