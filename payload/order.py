"""Which sample each rank reads in each step: a pure function, the same for every world size.

An epoch visits every window once, in a pseudo-random order that is computed per index in constant
memory: a keyed Feistel network over the next power of four, walked along its cycle until it lands
inside (Black and Rogaway 2002). Must not read data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
# Multipliers of splitmix64 (Steele, Lea and Flood 2014): any change of input bits spreads to all bits.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _feistel(values: NDArray[np.uint64], keys: NDArray[Any], half_bits: int) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for key in keys:
        mixed = right + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << shift) | right


def permute(indices: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where each index of [0, size) goes in the permutation of (seed, epoch); any shape."""
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(np.uint64), keys, half_bits)
    while (outside := values >= size).any():
        values[outside] = _feistel(values[outside], keys, half_bits)
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
