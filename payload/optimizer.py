"""Fused AdamW that can be gated on the device, with its state made before the first step.

Must not know where gradients come from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainctl.job.settings import Train


def decay_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(decayed, not decayed). Matrices decay, embedding included, as nanoGPT has it: with a tied
    head it is the output matrix too. Norms and biases, all one-dimensional, do not."""
    weights = list(model.parameters())
    return [w for w in weights if w.dim() > 1], [w for w in weights if w.dim() <= 1]


def make_optimizer(model: nn.Module, train: Train) -> torch.optim.AdamW:
    """AdamW whose `lr` is one tensor, changed in place, shared by both groups.

    Moments exist from the start: peak memory shows in the first step, and a checkpoint is loaded
    into them in place.
    """
    decayed, plain = decay_groups(model)
    device = decayed[0].device
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": train.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        betas=(train.beta1, train.beta2),
        eps=train.adam_eps,
        fused=True,
    )
    rate = torch.zeros((), device=device)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for weight in (*decayed, *plain):
        optimizer.state[weight] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
        }
    return optimizer


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """In place, so that a captured graph would see it; no synchronisation."""
    optimizer.param_groups[0]["lr"].fill_(rate)


def named_state(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Everything that training has learned, as a flat name -> tensor map onto the live storage.

    `model.NAME`, and `optimizer.NAME.exp_avg`, `.exp_avg_sq` and `.step` for each parameter.
    """
    state: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        state[f"model.{name}"] = weight.detach()
        for key, value in optimizer.state[weight].items():
            state[f"optimizer.{name}.{key}"] = value
    return state
