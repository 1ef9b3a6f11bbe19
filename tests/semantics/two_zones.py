"""Two nodes, each in a zone of its own, and drivers that run on the first one."""

import pytest

DRIVER = """
import os, time
import shoal
from shoal.util import placement_group, placement_group_table, remove_placement_group
from shoal.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

@shoal.remote(num_cpus=1)
class Here:
    def node(self):
        return shoal.get_runtime_context().get_node_id()

    def name(self, value):
        return value + " Here"

    def die(self):
        os._exit(1)

shoal.init(address="auto")
zones = {n["labels"].get("zone"): n["id"] for n in shoal.nodes()}

def node_of(**options):
    actor = Here.options(**options).remote()
    node = shoal.get(actor.node.remote())
    shoal.kill(actor)
    return node
"""


@pytest.fixture
def run(shoal_command):
    head = shoal_command.json("start", "--head", "--num-cpus", "2", "--port", "0", "--label", "zone=a", "--label", "disk=fast")
    shoal_command.json("start", "--address", head["address"], "--num-cpus", "2", "--label", "zone=b")

    def one(body: str) -> str:
        driver = shoal_command.driver(DRIVER + body)
        assert driver.code() == 0, driver.err
        return driver.out

    yield one
    shoal_command.json("stop")
