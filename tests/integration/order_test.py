"""The order of a loader's batches: samplers with generators of their own repeat it, and those that cannot are refused by name."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from shoal.exceptions import InvalidArgument
from shoal.train import State, steps
from shoal.train._data.batches import Feeder, Shares
from shoal.train._data.order import Order, check_repeats, checksum, mixed
from shoal.train._gang import Gang

NUM_SAMPLES, BATCH = 37, 8
GENERATOR = np.random.default_rng(2)
ONE_WORKER = Shares(range(1), 1)


class Drawn(Sampler):
    """``draw``: returns a permutation."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        return iter(self.draw())

    def __len__(self):
        return NUM_SAMPLES


class WithGenerator(Sampler):
    def __init__(self, generator, method="permutation"):
        self.inner = {"generators": [generator]}
        self.method = method

    def __iter__(self):
        return iter(getattr(self.inner["generators"][0], self.method)(NUM_SAMPLES).tolist())

    def __len__(self):
        return NUM_SAMPLES


class OfItsClass(Sampler):
    generator = np.random.default_rng(2)

    def __iter__(self):
        return iter(self.generator.permutation(NUM_SAMPLES).tolist())

    def __len__(self):
        return NUM_SAMPLES


def shuffled(generator):
    order = list(range(NUM_SAMPLES))
    generator.shuffle(order)
    return order


def in_a_closure():
    generator = random.Random(2)
    return Drawn(lambda: shuffled(generator))


def of_torch():
    generator = torch.Generator()
    return Drawn(lambda: torch.randperm(NUM_SAMPLES, generator=generator))


def drawn_one_by_one():
    generator, left = np.random.default_rng(2), []

    def draw():
        left[:] = range(NUM_SAMPLES)
        while left:
            yield left.pop(generator.integers(len(left)))

    return Drawn(draw)


REPEATABLE = {
    "numpy": lambda: WithGenerator(np.random.default_rng(2)),
    "unseeded": lambda: WithGenerator(np.random.default_rng()),
    "philox": lambda: WithGenerator(np.random.Generator(np.random.Philox(2))),
    "random state": lambda: WithGenerator(np.random.RandomState(2)),
    "bound method": lambda: Drawn(partial(np.random.default_rng(2).permutation, NUM_SAMPLES)),
    "class": OfItsClass,
    "global variable": lambda: Drawn(lambda: GENERATOR.permutation(NUM_SAMPLES).tolist()),
    "closure": in_a_closure,
    "torch": of_torch,
    "one by one": drawn_one_by_one,
    "global generator": lambda: Drawn(lambda: shuffled(random)),
    "nested": lambda: Drawn(WithGenerator(np.random.default_rng(2)).__iter__),
}


def loader_of(sampler):
    return DataLoader(TensorDataset(torch.arange(NUM_SAMPLES)), batch_size=BATCH, sampler=sampler)


def epoch_of(loader, epoch):
    return [[int(i) for i in batch] for batch in Order(loader, 0, epoch)]


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_sampler_draws_the_same_order_in_every_worker_and_again_after_a_change(name):
    one, other = (loader_of(REPEATABLE[name]()) for _ in range(2))
    check_repeats(one, 0, 0)
    first = epoch_of(one, 1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert epoch_of(one, 1) == epoch_of(other, 1) == first
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert sorted(i for batch in first for i in batch) == list(range(NUM_SAMPLES))
    assert epoch_of(one, 0) != first


def test_the_generators_of_a_sampler_go_on_outside_of_it():
    sampler = WithGenerator(generator := np.random.default_rng(2))
    epoch_of(loader_of(sampler), 0)
    assert generator.random() == np.random.default_rng(2).random()


class Counts(Sampler):
    """Each of its iterations is an epoch."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(np.random.default_rng(self.epoch).permutation(NUM_SAMPLES).tolist())

    def __len__(self):
        return NUM_SAMPLES


def test_a_sampler_that_cannot_repeat_its_order_is_refused_by_name():
    with pytest.raises(InvalidArgument, match="the sampler Counts draws other batches when it is iterated again"):
        check_repeats(loader_of(Counts()), 0, 0)
    with pytest.raises(InvalidArgument, match="the sampler Drawn draws other batches"):
        check_repeats(loader_of(Drawn(lambda: shuffled(random.SystemRandom()))), 0, 0)
    once = DataLoader(TensorDataset(torch.arange(4)), batch_sampler=(b for b in [[0, 1], [2, 3]]))
    with pytest.raises(InvalidArgument, match="the sampler generator draws other batches"):
        check_repeats(once, 0, 0)


def test_a_position_in_another_order_is_refused():
    loader = loader_of(WithGenerator(np.random.default_rng(2)))
    drawn = checksum(checksum(0, epoch_of(loader, 3)[0]), epoch_of(loader, 3)[1])
    given = Feeder(loader, 0, 3, 2, drawn, ONE_WORKER).next()
    assert given.batch[0].tolist() == epoch_of(loader, 3)[2]
    assert given.drawn == checksum(drawn, epoch_of(loader, 3)[2])
    assert Feeder(loader, 0, 3, 2, 0, ONE_WORKER).next().drawn == given.drawn  # unknown in positions of former releases
    with pytest.raises(InvalidArgument, match=r"the first 2 batches of epoch 3 are not .*sampler WithGenerator"):
        Feeder(loader, 0, 3, 2, drawn + 1, ONE_WORKER).next()
    state = State()
    state.load_state_dict({"epoch": 1, "batch": 2, "step": 7, "seed": 0})
    assert state.drawn == 0


def test_a_position_with_another_batch_size_or_dataset_is_refused_or_begins_anew():
    def loader(samples, batch):
        return DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch, shuffle=True)

    state = State(seed=3)
    for number, _ in enumerate(steps(loader(NUM_SAMPLES, BATCH), state), 1):
        if number == 3:
            break
    saved = state.state_dict()
    # In an epoch of 2 batches, the position is behind the end.
    for samples, batch in ((NUM_SAMPLES, 4), (NUM_SAMPLES, 20), (NUM_SAMPLES + 1, BATCH)):
        state = State(seed=3)
        state.load_state_dict(saved)
        with pytest.raises(
            InvalidArgument, match=rf"size \(now {batch}\), the dataset \(now {samples} samples\).*RandomSampler"
        ) as refused:
            list(steps(loader(samples, batch), state))
        assert "state.batch = state.drawn = 0" in refused.value.hint
        state = State(seed=3)
        state.load_state_dict(saved)
        state.batch = state.drawn = 0
        assert sorted(i for b in steps(loader(samples, batch), state) for i in b[0].tolist()) == list(range(samples))


def test_a_position_at_the_end_of_an_epoch_goes_on_with_the_next_one():
    loader = loader_of(of_torch())
    whole = list(Order(loader, 0, 0))
    drawn = 0
    for batch in whole:
        drawn = checksum(drawn, batch)
    assert Feeder(loader, 0, 0, len(whole), drawn, ONE_WORKER).next() is None


def test_generators_that_former_releases_seeded_keep_their_seeds():
    class Both(Sampler):
        def __init__(self):
            self.more, self.generator = torch.Generator(), torch.Generator()

        def __iter__(self):
            self.drawn = [int(torch.randint(1 << 40, (), generator=g)) for g in (self.generator, self.more)]
            return iter(torch.randperm(NUM_SAMPLES, generator=self.generator).tolist())

        def __len__(self):
            return NUM_SAMPLES

    sampler = Both()
    loader = DataLoader(TensorDataset(torch.arange(NUM_SAMPLES)), batch_size=BATCH, sampler=sampler, generator=torch.Generator())
    batches = epoch_of(loader, 2)
    former = torch.Generator().manual_seed(mixed(0, 2))
    assert sampler.drawn[0] == int(torch.randint(1 << 40, (), generator=former)) != sampler.drawn[1]
    assert [i for b in batches for i in b] == torch.randperm(NUM_SAMPLES, generator=former).tolist()


def test_workers_of_a_fixed_size_start_no_node_to_compare_their_orders(monkeypatch):
    state = State()
    state.gang = gang = Gang(state, None)
    gang.size = 2
    monkeypatch.setattr(gang, "_connect", lambda: pytest.fail("the loop connects the workers by itself"))
    loader = loader_of(of_torch())
    assert len(list(steps(loader, state))) == len(loader)
    compared = []
    monkeypatch.setattr(gang, "_reduce", lambda t, dtype, op: compared.append(op))
    gang._communicator = object()  # state.mean has made one
    state.drawn = 0
    gang.agree(0)
    assert compared == ["max"]


def test_workers_with_different_orders_stop(monkeypatch):
    state = State()
    state.loader, state.drawn, state.step = loader_of(Counts()), 7, 1
    gang = Gang(state, None)
    gang.size, gang._communicator = 2, object()
    others = torch.tensor([0, 8, -8])
    monkeypatch.setattr(gang, "_reduce", lambda t, dtype, op: t.copy_(torch.maximum(t, others)))
    with pytest.raises(InvalidArgument, match=r"the workers have drawn different batches before step 2.*sampler Counts"):
        gang.agree(0)
    state.drawn = 8
    gang.agree(0)
    assert gang.agree(1) == 1


def test_equal_indices_of_different_types_have_one_checksum():
    assert checksum(0, [3, 4]) == checksum(0, [torch.tensor(3), np.int64(4)]) != checksum(0, [4, 3])
    assert checksum(0, [(3, "wide")]) == checksum(0, [[torch.tensor(3), "wide"]]) != checksum(0, [(3, "high")])
