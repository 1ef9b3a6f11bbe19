"""shoal.util.metrics with Ray's API. (For reading metrics see tests/integration/metrics_test.py.)"""

import json
import pickle
import subprocess
import warnings

import pytest
from internals.core import binary
from launching.leftovers import wait_until

import shoal as ray
from shoal.util.metrics import Counter, Gauge, Histogram

GUARD_S = 90


def told(name):
    """The values of a metric by tags, summed over all processes."""
    out = {}
    done = subprocess.run([binary(), "metrics", "--json"], capture_output=True, text=True, check=True, timeout=GUARD_S)
    for family in json.loads(done.stdout)["families"]:
        if family["name"] == f"shoal_user_{name}":
            for sample in family["samples"]:
                ours = ("node", "host", "job_id", "role", "pid", "worker")
                tags = tuple(sorted((k, v) for k, v in sample["labels"].items() if k not in ours))
                out[tags] = out.get(tags, 0) + (sample.get("value") or sum(sample.get("counts", ())))
    return out


def arrives(name, values):
    wait_until(lambda: told(name) == values, GUARD_S, f"{name} {values}")


def test_a_counter_adds_its_increments():
    counter = Counter("words", description="Words that were read.", tag_keys=("lang", "kind"))
    assert counter.set_default_tags({"kind": "noun"}) is counter
    counter.inc(tags={"lang": "de"})
    counter.inc(2.5, {"lang": "de"})
    counter.inc(3, tags={"lang": "de", "kind": "verb"})
    arrives("words_total", {(("kind", "noun"), ("lang", "de")): 3.5, (("kind", "verb"), ("lang", "de")): 3})
    assert counter.info == {
        "name": "words",
        "description": "Words that were read.",
        "tag_keys": ("lang", "kind"),
        "default_tags": {"kind": "noun"},
    }


def test_a_gauge_has_its_last_value():
    gauge = Gauge("depth")
    for value in (3, -1.5, None):
        gauge.set(value)
    arrives("depth", {(): -1.5})


def test_a_histogram_counts_observations():
    histogram = Histogram("waits", boundaries=[1.0, 10.0], tag_keys=("q",))
    for value in (0.5, 1.0, 5, 100):
        histogram.observe(value, tags={"q": "a"})
    arrives("waits", {(("q", "a"),): 4})
    assert histogram.info["boundaries"] == [1.0, 10.0]


def test_counts_of_actors_and_functions_are_summed():
    @ray.remote
    class Worker:
        def __init__(self, counter):
            self.counter = counter

        def work(self):
            self.counter.inc(2)

    @ray.remote
    def work(counter):
        counter.inc(5)

    counter = Counter("shared")
    workers = [Worker.remote(counter) for _ in range(2)]
    ray.get([w.work.remote() for w in workers] + [work.remote(counter)])
    counter.inc()
    arrives("shared_total", {(): 2 + 2 + 5 + 1})


def test_a_metric_is_a_value():
    counter = Counter("sent", "As it was.", ("a", "b")).set_default_tags({"a": "1"})
    again = pickle.loads(pickle.dumps(counter))
    assert again.info == counter.info
    for c in (counter, again):
        c.inc(tags={"b": "2"})
    arrives("sent_total", {(("a", "1"), ("b", "2")): 2})
    histogram = pickle.loads(pickle.dumps(Histogram("sent_h", "", [1, 2], ("k",))))
    assert (histogram.boundaries, histogram.info["tag_keys"]) == ([1, 2], ("k",))


def test_user_tags_do_not_clash_with_shoals_tags():
    Gauge("where", tag_keys=("node",)).set(1, {"node": "mine"})
    arrives("where", {(("exported_node", "mine"),): 1})
    Gauge("where_both", tag_keys=("node", "exported_node")).set(1, {"node": "a", "exported_node": "b"})
    arrives("where_both", {(("exported_exported_node", "a"), ("exported_node", "b")): 1})


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "ä"])
def test_names_invalid_in_prometheus_are_refused(name):
    for make in (Counter, Gauge, lambda n: Histogram(n, boundaries=[1])):
        with pytest.raises(ValueError, match="name"):
            make(name)


def test_definitions_are_checked():
    with pytest.raises(TypeError, match="name"):
        Counter(5)
    with pytest.raises(TypeError, match="tuple"):
        Counter("c", tag_keys=["a"])
    with pytest.raises(TypeError, match="Tag keys must be str"):
        Counter("c", tag_keys=("a", 1))
    for key in ("", "a-b", "__a", "le"):
        with pytest.raises(ValueError, match="tag key"):
            Gauge("g", tag_keys=(key,))
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("h")
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("h", boundaries=[])
    with pytest.raises(ValueError, match="index 1"):
        Histogram("h", boundaries=[1, 0])
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("h", boundaries=[2, 1])
    with pytest.raises(TypeError):
        Histogram("h", boundaries=["1"])


def test_metrics_of_one_name_are_one_metric():
    Counter("one").inc()
    Counter("one").inc()
    arrives("one_total", {(): 2})
    with pytest.raises(ValueError, match="another kind"):
        Gauge("one")
    Histogram("bounded", boundaries=[1])
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("bounded", boundaries=[2])


def test_values_and_tags_are_checked():
    counter, gauge = Counter("checked", tag_keys=("a",)), Gauge("checked_gauge")
    histogram = Histogram("checked_h", boundaries=[1])
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=">0"):
            counter.inc(value, {"a": "x"})
    for record in (lambda v: counter.inc(v, {"a": "x"}), gauge.set, histogram.observe):
        with pytest.raises(TypeError, match="int or float"):
            record("1")
    for record in (counter.inc, histogram.observe):
        with pytest.raises(TypeError, match="int or float"):
            record(None)
    with pytest.raises(ValueError, match=r"Missing value for tag key\(s\): a"):
        counter.inc()
    with pytest.raises(ValueError, match="Unrecognized tag key b"):
        counter.inc(tags={"a": "x", "b": "y"})
    with pytest.raises(ValueError, match="Unrecognized tag key a"):
        gauge.set(1, {"a": "x"})
    for value in (1, [1]):
        with pytest.raises(TypeError, match="Tag values must be str"):
            counter.inc(tags={"a": value})
    with pytest.raises(ValueError, match="Unrecognized tag key b"):
        counter.set_default_tags({"b": "x"})
    with pytest.raises(TypeError, match="Tag values must be str"):
        counter.set_default_tags({"a": 1})
    with pytest.raises(ValueError, match="number"):
        histogram.observe(float("nan"))
    counter.inc(1, {"a": "x"})
    arrives("checked_total", {(("a", "x"),): 1})


def test_series_beyond_the_bound_are_dropped_with_one_warning():
    @ray.remote
    class Careless:
        def count(self, n):
            counter = Counter("careless", tag_keys=("i",))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for i in range(n):
                    counter.inc(tags={"i": str(i)})
            return [str(w.message) for w in caught]

    actor = Careless.remote()
    (said,) = ray.get(actor.count.remote(2010))
    assert "careless" in said
    assert "2000 series" in said
    wait_until(lambda: len(told("careless_total")) == 2000, GUARD_S, "2000 series")
    ray.kill(actor)
