"""Which sample each rank reads in each step: a pure function, the same for every world size.

An epoch visits every window once, in a pseudo-random order that is computed per index in constant
memory: a keyed Feistel network over the next power of two, walked along its cycle until it lands
inside (Black and Rogaway 2002). Must not read data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # even
# Multipliers of splitmix64 (Steele, Lea and Flood 2014); the upper half of a product is well mixed.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def _feistel(values: NDArray[np.uint64], keys: NDArray[Any], bits: int) -> NDArray[np.uint64]:
    """A bijection of [0, 2**bits), bits >= 2. The halves differ by a bit when `bits` is odd, and trade
    places each round; after an even number of rounds they are home again."""
    left_bits, right_bits = bits - bits // 2, bits // 2
    left, right = values >> np.uint64(right_bits), values & np.uint64((1 << right_bits) - 1)
    for key in keys:
        mixed = (right ^ key) * _MIX_1
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX_2
        left, right = right, left ^ ((mixed >> _HALF) & np.uint64((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def permute(indices: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where each index of [0, size) goes in the permutation of (seed, epoch); any shape."""
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    bits = max(2, (size - 1).bit_length())
    values = _feistel(indices.astype(np.uint64), keys, bits)
    while (outside := values >= size).any():
        values[outside] = _feistel(values[outside], keys, bits)
    return values.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """windows: training samples in an epoch. accumulation: micro-batches of one rank in one step."""

    windows: int
    seed: int
    micro_batch: int
    accumulation: int
    world: int

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.world

    def windows_of(self, first_sample: int, rank: int) -> NDArray[np.int64]:
        """Windows that `rank` reads in the step that begins at `first_sample`: [accumulation, micro_batch].

        first_sample: samples that all steps before have used. The union over the ranks is the next
        `global_batch` samples, however many ranks share them.
        """
        micro_batches = np.arange(self.accumulation)[:, None] * (self.world * self.micro_batch)
        own = rank * self.micro_batch + np.arange(self.micro_batch)[None, :]
        epochs, indices = np.divmod(first_sample + micro_batches + own, self.windows)
        result = np.empty_like(indices)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = permute(indices[here], self.windows, self.seed, int(epoch))
        return result
