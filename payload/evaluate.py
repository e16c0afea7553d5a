"""Loss on the held-out part of the text. A certainty point: it may wait for the device."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from payload.corpus import Corpus
from payload.model import GPT
from payload.ranks import Ranks


def held_out_loss(
    model: GPT,
    corpus: Corpus,
    ranks: Ranks,
    *,
    batches: int,
    micro_batch: int,
    autocast: torch.dtype | None,
) -> float:
    """Mean nats per token over at most `batches` micro-batches per rank, the same windows each time.

    The windows are spread evenly over the held-out text and dealt out to the ranks in turn.
    """
    wanted = min(batches * micro_batch * ranks.size, corpus.held_out_windows)
    own = (np.arange(wanted) * corpus.held_out_windows // wanted)[ranks.rank :: ranks.size]
    total = torch.zeros(2, dtype=torch.float64, device=ranks.device)  # summed loss, windows
    with torch.no_grad():
        for start in range(0, len(own), micro_batch):
            windows = own[start : start + micro_batch]
            host = np.empty((len(windows), corpus.seq_len + 1), np.int64)
            corpus.read(windows, host, held_out=True)
            tokens = torch.from_numpy(host).to(ranks.device)
            with torch.autocast(ranks.device.type, autocast, enabled=autocast is not None):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            total += torch.stack((loss.double() * len(windows), loss.new_tensor(len(windows)).double()))
    dist.all_reduce(total)
    return float(total[0] / total[1])
