"""This process among the others: rank, device, process groups."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainctl.errors import TrainctlError
from trainctl.job.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """checkpoint_group: gloo, apart from the default group, so that saves never share its order."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    checkpoint_group: dist.ProcessGroup

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gathered(self, value: Any) -> list[Any]:
        """One plain value of each rank, in rank order, on every rank. The host waits."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.checkpoint_group)
        return values


def join(plan: Plan) -> Ranks:
    """Meet the other ranks. Raises TrainctlError when the world is not the planned one."""
    size = int(os.environ["WORLD_SIZE"])
    if size != plan.layout.world:
        raise TrainctlError(
            "world-size",
            f"{size} ranks were started, the plan is for {plan.layout.world}",
            hint="launch with trainctl, which starts what the plan says",
        )
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.set_num_threads(plan.threads)
    timeout = timedelta(seconds=plan.settings.train.collective_timeout_s)
    if plan.device == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout)
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member
    return Ranks(
        rank=dist.get_rank(), local_rank=local_rank, size=size, device=device, checkpoint_group=group
    )


def seed_everything(seed: int, stream: int) -> None:
    """Seed python, numpy and torch (every device). Streams are independent of each other."""
    words = np.random.SeedSequence([seed, stream]).generate_state(2)
    random.seed(int(words[0]))
    np.random.seed(int(words[0]))
    torch.manual_seed(int(words[1]))
