"""Runs an elastic training on the hosts of a cluster, some of whose workers or hosts die: hosts_recovery.py HEAD OUT CASE.

CASE is JSON: "bounds", "resource" (each worker needs one), "protect", and the configuration of ``recovery_loops.steps_form``. OUT receives
the training's results, or its error.
"""

import json
import sys

import recovery_loops

import shoal
from shoal.train import ScalingConfig, Trainer, WorkerLost


def loop(config):
    node = shoal.get_runtime_context().get_node_id()
    return {"node": node, **recovery_loops.steps_form(config)}


def main(head: str, out: str, case: str) -> None:
    case = json.loads(case)
    shoal.init(address=head)
    scaling = ScalingConfig(tuple(case["bounds"]), resources_per_worker={"CPU": 0, case["resource"]: 1}, protect=case.get("protect", True))
    try:
        result = Trainer(loop, train_loop_config=case, scaling_config=scaling).fit()
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
