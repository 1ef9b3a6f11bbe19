"""Ranks as actors of Ray, in a cluster of Ray that exists already: ``shoal.ray.run(loop, config, num_workers=4)``.

Ray is an optional package, which ``run`` imports. This package does not replace it: ``import ray`` means Ray everywhere. ``import shoal as
ray`` is Ray's actor API on Shoal's own cluster.
"""

from shoal.ray._run import run
from shoal.train import Result

__all__ = ["Result", "run"]
