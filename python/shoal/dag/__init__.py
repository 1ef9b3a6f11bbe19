"""Static graphs over actors, bound once and executed many times (Ray's ``ray.dag``).

with InputNode() as inp:
    dag = b.g.bind(a.f.bind(inp))
shoal.get(dag.execute(1))                # ordinary calls
compiled = dag.experimental_compile()    # or: channels between the actors, and a schedule for each
shoal.get(compiled.execute(1))
compiled.teardown()
"""

from shoal.dag._compiled import CompiledDAG, CompiledDAGFuture, CompiledDAGRef
from shoal.dag._nodes import ClassMethodNode, DAGNode, FunctionNode, InputAttributeNode, InputNode, MultiOutputNode

__all__ = [
    "ClassMethodNode",
    "CompiledDAG",
    "CompiledDAGFuture",
    "CompiledDAGRef",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
]
