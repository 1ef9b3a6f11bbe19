"""Whole programs as users of Ray write them, with a changed import only."""

import asyncio
import collections
import time

import numpy as np

import shoal as ray
from shoal.util import ActorPool
from shoal.util.placement_group import placement_group, remove_placement_group
from shoal.util.queue import Empty, Queue
from shoal.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy


def test_tasks_report_progress_to_an_actor():
    @ray.remote
    class Progress:
        def __init__(self, total):
            self.total, self.done = total, collections.defaultdict(int)

        def report(self, task, done):
            self.done[task] = done

        def fraction(self):
            return sum(self.done.values()) / self.total

    @ray.remote
    def sample(count, task, progress):
        rng, inside = np.random.default_rng(task), 0
        for i in range(1, count + 1):
            inside += rng.random() ** 2 + rng.random() ** 2 <= 1
            if i % 500 == 0:
                progress.report.remote(task, i)
        return inside

    tasks, each = 4, 2000
    progress = Progress.remote(tasks * each)
    results = [sample.remote(each, i, progress) for i in range(tasks)]
    assert 3 < 4 * sum(ray.get(results)) / (tasks * each) < 3.3
    while ray.get(progress.fraction.remote()) < 1:
        time.sleep(0.01)


def test_a_parameter_server_serves_workers_as_they_become_ready():
    @ray.remote(num_cpus=1)
    class ParameterServer:
        def __init__(self, size):
            self.weights = np.zeros(size)

        def apply(self, *gradients):
            self.weights = self.weights - 0.5 * np.mean(gradients, axis=0)
            return self.weights

        def get(self):
            return self.weights

    @ray.remote
    class DataWorker:
        def __init__(self, target):
            self.target = target

        def gradients(self, weights):
            return weights - self.target

    server = ParameterServer.remote(1000)
    workers = [DataWorker.remote(np.arange(1000.0)) for _ in range(3)]
    weights = server.get.remote()
    for _ in range(20):
        weights = server.apply.remote(*[w.gradients.remote(weights) for w in workers])
    assert np.allclose(ray.get(weights), np.arange(1000), atol=1e-2)

    weights, under_way = server.get.remote(), {}
    for worker in workers:
        under_way[worker.gradients.remote(weights)] = worker
    for _ in range(12):
        (ready,), _ = ray.wait(list(under_way))
        worker = under_way.pop(ready)
        under_way[worker.gradients.remote(server.apply.remote(ready))] = worker
    assert np.allclose(ray.get(server.get.remote()), np.arange(1000), atol=1e-2)


def test_maps_and_reduces_count_words():
    texts = ["the quick fox", "the lazy dog", "the fox"]

    @ray.remote
    def count(text, buckets):
        out = [collections.Counter() for _ in range(buckets)]
        for word in text.split():
            out[len(word) % buckets][word] += 1
        return out

    @ray.remote
    def merge(*counters):
        return sum(counters, collections.Counter())

    buckets = 3
    parts = [count.options(num_returns=buckets).remote(text, buckets) for text in texts]
    merged = ray.get([merge.remote(*[part[b] for part in parts]) for b in range(buckets)])
    assert sum(merged, collections.Counter()) == {"the": 3, "fox": 2, "quick": 1, "lazy": 1, "dog": 1}


def test_a_batcher_feeds_a_pool_of_models_in_a_group():
    group = placement_group([{"CPU": 1}] * 2, strategy="PACK")
    ray.get(group.ready(), timeout=60)

    @ray.remote(num_cpus=1)
    class Model:
        def __init__(self, scale):
            self.scale = ray.get(scale[0])  # the reference is in a list, so that it was not resolved

        def predict(self, batch):
            return batch * self.scale

    scale = ray.put(np.float64(3))
    models = [
        Model.options(scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=i)).remote(
            [scale]
        )
        for i in range(2)
    ]
    pool = ActorPool(models)
    batches = [np.full(10_000, i) for i in range(6)]
    assert [int(b[0]) for b in pool.map(lambda model, batch: model.predict.remote(batch), batches)] == [0, 3, 6, 9, 12, 15]
    unordered = pool.map_unordered(lambda model, batch: model.predict.remote(batch), batches)
    assert sorted(int(b[0]) for b in unordered) == [0, 3, 6, 9, 12, 15]
    remove_placement_group(group)


def test_producers_and_consumers_around_a_queue():
    queue = Queue(maxsize=4)

    @ray.remote
    def produce(queue, who):
        for i in range(10):
            queue.put((who, i))

    @ray.remote
    class Consumer:
        async def run(self, queue):
            seen = []
            while True:
                try:
                    item = await queue.get_async(timeout=60)
                except Empty:
                    return seen
                if item is None:
                    return seen
                seen.append(item)

    consumers = [Consumer.remote() for _ in range(2)]
    runs = [c.run.remote(queue) for c in consumers]
    ray.get([produce.remote(queue, who) for who in "ab"])
    for _ in consumers:
        queue.put(None)
    assert sorted(item for run in ray.get(runs) for item in run) == [(who, i) for who in "ab" for i in range(10)]
    queue.shutdown()


def test_a_named_service_restarts():
    @ray.remote(max_restarts=2, max_task_retries=-1)
    class Cache:
        def __init__(self):
            self.values, self.lock = {}, asyncio.Lock()

        async def get_or_make(self, key):
            async with self.lock:
                if key not in self.values:
                    await asyncio.sleep(0.001)
                    self.values[key] = len(self.values)
            return self.values[key]

        async def crash(self):
            import os

            if not ray.get_runtime_context().was_current_actor_reconstructed:
                os._exit(1)
            return "back"

    @ray.remote
    def use(key):
        cache = Cache.options(name="cache", get_if_exists=True, lifetime="detached", namespace="services").remote()
        return ray.get(cache.get_or_make.remote(key))

    assert len(set(ray.get([use.remote("x") for _ in range(6)]))) == 1
    cache = ray.get_actor("cache", namespace="services")
    assert {"name": "cache", "namespace": "services"} in ray.util.list_named_actors(all_namespaces=True)
    assert ray.get(cache.crash.remote()) == "back"
    assert ray.get(cache.get_or_make.remote("y")) == 0
    ray.kill(cache)


def test_a_tree_of_actors_on_chosen_nodes_reports_its_errors():
    @ray.remote
    class Supervisor:
        def __init__(self, node):
            strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            self.children = [Child.options(scheduling_strategy=strategy).remote(i) for i in range(3)]

        def work(self):
            done, failed = [], []
            for ref in [c.work.remote() for c in self.children]:
                try:
                    done.append(ray.get(ref))
                except ray.exceptions.RayTaskError as error:
                    failed.append(type(error.cause).__name__)
            return done, failed

    @ray.remote
    class Child:
        def __init__(self, i):
            self.i = i

        def work(self):
            if self.i == 1:
                raise ArithmeticError("one of them")
            return self.i

    node = ray.get_runtime_context().get_node_id()
    assert [n["NodeID"] for n in ray.nodes() if n["Alive"]] == [node]
    assert ray.get(Supervisor.remote(node).work.remote()) == ([0, 2], ["ArithmeticError"])
