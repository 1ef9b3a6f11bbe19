"""Parts of compiled graphs (shoal/dag): schedules, deadlocks, channel sizes, turns."""

import random
import threading

import pytest

from shoal.dag._channels import Layout
from shoal.dag._loop import Argument, Turn, filled
from shoal.dag._nodes import DAGNode, nodes_in, replaced
from shoal.dag._schedule import DRIVER, Call, find_deadlock, order, plan
from shoal.exceptions import InvalidArgument

X = ("input", None)


def calls(*described):
    """("a", reads...) each; labels are a0, b1, ..."""
    return [Call(actor, f"{actor}{n}", reads) for n, (actor, *reads) in enumerate(described) for reads in [tuple(reads)]]


def orders_of(made):
    return {actor: [s.call for s in steps] for actor, steps in made.steps.items()}


def test_a_chain_has_a_channel_for_each_hop():
    made = plan(calls(("a", X), ("b", 0), ("c", 1)), [2])
    assert [(c.value, c.writer, c.reader) for c in made.channels] == [(X, DRIVER, "a"), (0, "a", "b"), (1, "b", "c"), (2, "c", DRIVER)]
    assert (made.inputs, made.outputs) == ({X: [0]}, {2: 3})
    assert [(s.call, s.reads, s.writes) for s in made.steps["b"]] == [(1, [(0, 1)], [2])]


def test_a_value_that_stays_on_its_actor_needs_no_channel():
    made = plan(calls(("a", X), ("a", 0)), [1])
    assert [(c.writer, c.reader) for c in made.channels] == [(DRIVER, "a"), ("a", DRIVER)]


def test_a_value_is_sent_once_per_reading_actor():
    made = plan(calls(("a", X), ("b", 0, X), ("b", 0, 1, X)), [2, 0, 2])
    assert len(made.channels) == len({(c.value, c.reader) for c in made.channels})
    first, second = made.steps["b"]
    assert [v for v, _ in first.reads] == [0, X]
    assert second.reads == []
    assert list(made.outputs) == [2, 0]


def test_calls_on_an_actor_run_in_binding_order():
    made = plan(calls(("a", X), ("b", X), ("a", X), ("a", 1)), [0, 2, 3])
    assert orders_of(made)["a"] == [0, 2, 3]


def test_a_call_runs_after_its_inputs_for_any_binding_order():
    graph = calls(("a", 1), ("b", 2), ("a", X))
    assert order(graph) == [2, 1, 0]
    assert find_deadlock(graph, orders_of(plan(graph, [0]))) == ""


def test_random_graphs_finish():
    choose = random.Random(7)
    for _ in range(300):
        graph = []
        for n in range(choose.randrange(1, 30)):
            reads = choose.sample(range(n), min(n, choose.randrange(3))) or [X]
            graph.append((choose.choice("abcd"), *reads))
        graph = calls(*graph)
        made = plan(graph, [len(graph) - 1])
        assert sorted(n for o in orders_of(made).values() for n in o) == list(range(len(graph)))
        assert find_deadlock(graph, orders_of(made)) == ""
        for actor, steps in made.steps.items():  # inputs of a call were read or computed before
            there = set()
            for step in steps:
                there |= {v for v, _ in step.reads}
                assert there >= set(graph[step.call].reads)
                there.add(step.call)
            assert all(made.channels[c].reader == actor for s in steps for _, c in s.reads)
            assert all(made.channels[c].value == s.call for s in steps for c in s.writes)


def test_a_cycle_is_an_error_that_names_it():
    graph = calls(("a", 1), ("b", 0))
    assert find_deadlock(graph, orders_of(plan(graph, [1]))) == "a0 waits for b1; b1 waits for a0"


def test_a_call_that_needs_itself_is_an_error():
    graph = calls(("c", X), ("a", 0, 1))
    assert find_deadlock(graph, orders_of(plan(graph, [1]))) == "a1 waits for a1"


def test_orders_that_contradict_each_other_are_a_deadlock():
    graph = calls(("a", X), ("b", X), ("a", 1), ("b", 0))
    assert find_deadlock(graph, {"a": [0, 2], "b": [1, 3]}) == ""
    said = find_deadlock(graph, {"a": [2, 0], "b": [3, 1]})
    assert said == "a2 waits for b1, which comes after b3; b3 waits for a0, which comes after a2"


def test_the_error_names_only_the_cycle():
    graph = calls(("d", 1), ("a", 2), ("b", 1))
    said = find_deadlock(graph, {"d": [0], "a": [1], "b": [2]})
    assert said == "a1 waits for b2; b2 waits for a1"


@pytest.mark.parametrize(("limit", "in_flight"), [(1, 1), (1_000_000, 1), (1_000_000, 10), (100, 1000), (65_000, 3)])
def test_channels_have_room_for_all_open_executions(limit, in_flight):
    layout = Layout.for_limit("x", 1, limit, in_flight)
    assert layout.capacity & (layout.capacity - 1) == 0
    assert layout.limit >= limit
    assert layout.limit + 96 <= layout.capacity // 2 - 8  # the largest record of a ring
    # Records at the limit, the gap where one does not fit before the end, and an eighth that is given back late.
    assert (in_flight + 1) * (layout.limit + 96) + layout.capacity // 8 <= layout.capacity


@pytest.mark.parametrize(("count", "in_flight"), [(1, 1), (2, 10), (128, 10), (2, 5000), (4000, 10)])
def test_default_channel_sizes_fit_the_nodes_memory(count, in_flight):
    layout = Layout.for_limit("x", count, Layout.default_limit(count, in_flight), in_flight)
    assert layout.limit >= 256
    assert layout.limit == 1_000_000 or count * in_flight > 20
    assert count * layout.capacity <= 320 << 20


def test_channels_beyond_the_largest_are_refused():
    with pytest.raises(InvalidArgument, match="_buffer_size_bytes"):
        Layout.for_limit("x", 1, 1 << 29, 10)


def test_nested_nodes_in_arguments_are_filled():
    class Node(DAGNode):
        pass

    one, two = Node(), Node()
    given = ([one, 1], {"k": (two, one)}, "x")
    assert list(nodes_in(given)) == [one, two, one]
    planned = replaced(given, lambda n: Argument(0 if n is one else 1))
    assert filled(planned, ["first", "second"]) == (["first", 1], {"k": ("second", "first")}, "x")
    untouched = [1, {"k": 2}]
    assert replaced(untouched, lambda n: None) is untouched


def test_turns_are_taken_in_request_order():
    turn, said = Turn(taken=True), []

    def take(n):
        with turn:
            said.append(n)

    threads = []
    for n in range(5):
        threads.append(threading.Thread(target=take, args=(n,)))
        threads[-1].start()
        while len(turn._waiting) != n + 1:  # until the thread waits
            pass
    assert said == []
    turn.__exit__()
    for t in threads:
        t.join()
    assert said == list(range(5))
    with turn:  # the turn is free again
        pass


def test_no_turn_is_given_twice_or_lost():
    turn, inside, most = Turn(taken=False), [], []

    def take():
        for _ in range(2000):
            with turn:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (max(most), len(most)) == (1, 8000)
