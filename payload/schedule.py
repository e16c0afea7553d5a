"""Learning rate by step: linear warm-up, then half a cosine down to the minimum."""

from __future__ import annotations

import math

from trainctl.job.settings import Train


def learning_rate(step: int, train: Train) -> float:
    """Rate of step `step` (1-based). The peak is met at the last warm-up step, `min_lr` at `steps`.

    Loshchilov and Hutter 2017, without restarts. A rate below `min_lr` only occurs in the warm-up.
    """
    if step <= train.warmup:
        return train.lr * step / train.warmup
    done = (step - train.warmup) / max(1, train.steps - train.warmup)
    return train.final_lr + (train.lr - train.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
