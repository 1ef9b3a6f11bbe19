"""``register_ray``: runs joblib, and with it scikit-learn, on actors of a cluster. Names are Ray's.

Call ``register_ray()`` once, then use ``with joblib.parallel_backend("ray"): ...``.
"""

from __future__ import annotations

from typing import Any

from shoal._driver.cluster import cluster_resources, is_initialized
from shoal._driver.init import init
from shoal.util.multiprocessing import Pool

__all__ = ["register_ray"]


def register_ray() -> None:
    """Registers the backends "ray" and "shoal" with joblib. ImportError without joblib."""
    from joblib.parallel import register_parallel_backend

    for name in ("ray", "shoal"):
        register_parallel_backend(name, _backend)


def _backend(ray_remote_args: dict[str, Any] | None = None, **options: Any):
    from joblib._parallel_backends import MultiprocessingBackend
    from joblib.parallel import FallbackToBackend, SequentialBackend

    class Backend(MultiprocessingBackend):
        def effective_n_jobs(self, n_jobs: int | None) -> int:
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            if not is_initialized():
                init()
            cpus = int(cluster_resources().get("CPU", 0))
            return 1 if n_jobs is None else min(n_jobs, cpus) if n_jobs > 0 else max(1, cpus + 1 + n_jobs)

        def configure(self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **_: Any) -> int:
            n_jobs = self.effective_n_jobs(n_jobs)
            if n_jobs == 1:
                raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
            self._pool, self.parallel = Pool(n_jobs, ray_remote_args=ray_remote_args), parallel
            return n_jobs

    return Backend(**options)
