"""One optimizer step, enqueued whole: the host never waits for the device in here.

Inputs lie in a static buffer, all results in one small record on the device. Before the optimizer
runs, one all-reduce tells every rank whether any rank saw a NaN or Inf; then a sticky flag on the
device holds back this update and every later one. The host reads the record a step late.

Must not know about files, schedules or the launcher. (No `from __future__ import annotations`:
DistributedDataParallel compares the hook's annotations as objects.)
"""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from payload.optimizer import set_rate

# Places in the record. From _NORM_POISON on, all are 0 in a good step and NaN where something was not
# finite (x * 0 is 0 for every finite x): the averaged gradient's norm, then each rank's own loss and
# gradient.
_LOSS, _STOP, _NORM, _REJECTED, _NORM_POISON, _POISON = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one step did, on the host. loss: mean nats per token over all ranks.

    rejected: the update was held back. invalid_ranks: whose own loss or gradient was not finite;
    empty when only the norm of the averaged gradient was not (with one rank, that is all there is).
    stop: some rank was asked to stop.
    """

    step: int
    loss: float
    grad_norm: float
    stop: bool
    rejected: bool
    invalid_ranks: tuple[int, ...]


class Step:
    """Forward and backward of all micro-batches, gradient average, judgement, gated update."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.AdamW,
        *,
        tokens_shape: tuple[int, int, int],
        grad_clip: float,
        gated: bool,
        autocast: torch.dtype | None,
    ) -> None:
        """tokens_shape: (accumulation, micro_batch, seq_len + 1). grad_clip: 0 does not clip.

        gated: judge and hold back; without it no step is inspected.
        """
        self.device = next(model.parameters()).device
        self.tokens = torch.zeros(tokens_shape, dtype=torch.int64, device=self.device)
        self._x, self._y = self.tokens[..., :-1], self.tokens[..., 1:]
        self._ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._weights = list(model.parameters())
        self._optimizer = optimizer
        self._autocast = autocast
        self._gated = gated
        self._grad_clip = grad_clip
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._inspected = torch.zeros((), device=self.device)
        self.rejected = torch.zeros((), device=self.device)
        self._record = torch.zeros(_POISON + self._world, device=self.device)
        self._judged = self._record[_NORM_POISON:]
        self._place = self._record.unbind()
        if gated:
            optimizer.found_inf = self.rejected  # type: ignore[attr-defined]
        if gated and self._world > 1:  # one rank has nobody to tell it from: the norm shows it all
            self._ddp.register_comm_hook(self._inspected, _inspect_and_average)
        if grad_clip:
            # The fused kernel divides by it, which clips without a pass over the gradients.
            optimizer.grad_scale = torch.ones((), device=self.device)  # type: ignore[attr-defined]

    @property
    def record_width(self) -> int:
        return len(self._record)

    def rehearse(self) -> None:
        """One pass whose gradients are thrown away. DistributedDataParallel lays out its buckets anew
        after the first backward, and from three ranks on the layout decides the order of the sums: a
        resumed process must not differ from one that went on."""
        self._forward_backward()
        self._optimizer.zero_grad(set_to_none=False)

    def run(self, *, rate: float, stop: bool) -> Tensor:
        """Enqueue one step on `tokens`. Returns the record, [5 + world] float32 on the device, which
        the next call overwrites. stop: what this rank wants all ranks to know."""
        set_rate(self._optimizer, rate)
        self._optimizer.zero_grad(set_to_none=False)
        place, record = self._place, self._record.zero_()
        self._inspected.zero_()
        loss_sum = self._forward_backward()
        norm = get_total_norm([weight.grad for weight in self._weights if weight.grad is not None])
        if self._gated:
            torch.mul(self._inspected.add_(loss_sum), 0, out=place[_POISON + self._rank])
            torch.mul(norm, 0, out=place[_NORM_POISON])
        torch.div(loss_sum, self._world, out=place[_LOSS])
        place[_STOP].fill_(float(stop))
        dist.all_reduce(record)
        if self._gated:
            self.rejected.logical_or_(self._judged.sum())  # NaN counts as true; once set it stays
        place[_NORM].copy_(norm)
        place[_REJECTED].copy_(self.rejected)
        if self._grad_clip:
            scale: Tensor = self._optimizer.grad_scale  # type: ignore[attr-defined]
            scale.copy_((norm / self._grad_clip).clamp(min=1))
        self._optimizer.step()
        return record

    def _forward_backward(self) -> Tensor:
        """Accumulate gradients of all micro-batches, averaged over ranks with the last one. Mean loss."""
        count = self.tokens.shape[0]
        loss_sum = torch.zeros((), device=self.device)
        for index in range(count):
            last = index == count - 1
            with nullcontext() if last else self._ddp.no_sync():
                with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
                    loss = self._ddp(self._x[index], self._y[index]) / count
                loss.backward()
            loss_sum += loss.detach()
        return loss_sum


class Mailbox:
    """Two places on the host: the record of step k travels while step k + 1 runs."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._slots = torch.zeros((2, width), pin_memory=self._cuda)
        self._events = [torch.cuda.Event() for _ in range(2)] if self._cuda else []  # type: ignore[no-untyped-call]
        self._views = self._slots.numpy()

    def post(self, step: int, record: Tensor) -> None:
        """Start copying; at most two records may be under way."""
        self._slots[step % 2].copy_(record, non_blocking=True)
        if self._cuda:
            self._events[step % 2].record()

    def collect(self, step: int) -> Record:
        """Wait for the record of `step` and read it."""
        if self._cuda:
            self._events[step % 2].synchronize()
        values = self._views[step % 2]
        return Record(
            step=step,
            loss=float(values[_LOSS]),
            grad_norm=float(values[_NORM]),
            stop=bool(values[_STOP] > 0),
            rejected=bool(values[_REJECTED] > 0),
            invalid_ranks=tuple(int(rank) for rank in np.flatnonzero(np.isnan(values[_POISON:]))),
        )


def _inspect_and_average(
    inspected: Tensor,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Look at this rank's own gradient before averaging spreads a NaN to every rank.

    A sum keeps every NaN and Inf, and is one cheap pass. It can also overflow on finite values, but
    only where the gradient norm overflows as well.
    """
    inspected.add_(bucket.buffer().sum())
    return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]
