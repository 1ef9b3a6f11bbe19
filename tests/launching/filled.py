"""A cluster whose state has many rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from launching.commands import LIMIT_S, Cluster, Command, Running
from launching.leftovers import wait_until

ACTORS, JOBS, NODES = 20_000, 10_001, 10_001  # with the driver's job, and the node that lives


def filled(command: Command, fill: Path) -> tuple[Cluster, Running]:
    """A cluster with so many rows, and the driver to which its actors belong. ``fill``: the program scheduler/state/fill_store, which adds
    them to the store of a head that is killed; the next head reads them."""
    cluster = command.start(cpus=1)
    driver = command.driver("""
        import shoal, threading
        shoal.init(address="auto")
        print("job", shoal.get_runtime_context().get_job_id(), flush=True)
        threading.Event().wait()
        """)
    driver.said("job ")
    wait_until(lambda: driver.out.endswith("\n"), 5)
    node, head = cluster.pid("node"), cluster.pid("head")
    os.kill(node, signal.SIGSTOP)  # it would start the next head at once
    os.kill(head, signal.SIGKILL)
    database = cluster.session / "state.sqlite"
    wait_until(lambda: subprocess.run([fill, database, driver.out.split()[-1]]).returncode == 0, 60, "the rows in the store")
    os.kill(node, signal.SIGCONT)

    def there() -> bool:
        status = command("status", "--json")
        return status.returncode == 0 and json.loads(status.stdout)["actors"] == ACTORS and json.loads(status.stdout)["nodes"] == 1

    wait_until(there, LIMIT_S, "the next head")
    return cluster, driver
