import numpy as np
import pytest

from payload.order import Order, permute


def order(world=1, micro_batch=4, accumulation=1, windows=1000, seed=7):
    return Order(windows=windows, seed=seed, micro_batch=micro_batch, accumulation=accumulation, world=world)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_every_epoch_visits_every_window_once(size):
    for epoch in (0, 1):
        assert sorted(permute(np.arange(size), size, 1, epoch)) == list(range(size))


def test_epochs_and_seeds_differ_and_repeat():
    first = permute(np.arange(1000), 1000, 1, 0)
    assert np.array_equal(first, permute(np.arange(1000), 1000, 1, 0))
    for seed, epoch in ((1, 1), (2, 0)):
        same = (first == permute(np.arange(1000), 1000, seed, epoch)).sum()
        assert same < 20  # 1 expected by chance


def test_permutation_looks_random():
    """Neighbours land apart: the mean distance of two random places in [0, n) is n/3."""
    n = 5000
    for epoch in range(5):
        places = permute(np.arange(n), n, 3, epoch)
        assert np.abs(np.diff(places)).mean() == pytest.approx(n / 3, rel=0.05)


def test_index_far_into_a_huge_corpus_needs_no_memory():
    places = permute(np.array([10**12, 10**12 + 1]), 3 * 10**12, 1, 0)
    assert len(set(places)) == 2
    assert (places < 3 * 10**12).all()


@pytest.mark.parametrize(
    ("world", "micro_batch", "accumulation"), [(1, 4, 2), (2, 4, 1), (4, 1, 2), (8, 1, 1)]
)
def test_union_over_ranks_is_the_same_for_every_world(world, micro_batch, accumulation):
    """... also where a step straddles two epochs."""
    for first in (0, 8, 992, 996, 40_000):
        expected = sorted(order(micro_batch=8).windows_of(first, 0).ravel())
        o = order(world, micro_batch, accumulation)
        found = [o.windows_of(first, rank) for rank in range(world)]
        assert all(part.shape == (accumulation, micro_batch) for part in found)
        assert sorted(np.concatenate(found, axis=None)) == expected


def test_steps_of_an_epoch_cover_it_once():
    o = order(world=2, accumulation=2, micro_batch=5)
    seen = [o.windows_of(step * o.global_batch, rank) for step in range(50) for rank in range(2)]
    assert sorted(np.concatenate(seen, axis=None)) == list(range(1000))
