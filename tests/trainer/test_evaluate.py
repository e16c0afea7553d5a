import numpy as np
import pytest
import torch

from payload.corpus import open_corpus
from payload.evaluate import held_out_loss
from payload.model import GPT


def test_loss_is_the_mean_over_every_held_out_window(make_plan, one_rank):
    """24 batches of 6 are more than there are: the last batch is short and must weigh less."""
    plan = make_plan()
    corpus = open_corpus(plan)
    torch.manual_seed(0)
    model = GPT(plan.settings.model, corpus.vocab)
    assert corpus.held_out_windows % 6 != 0
    rows = np.zeros((corpus.held_out_windows, 17), np.int64)
    corpus.read(np.arange(corpus.held_out_windows), rows, held_out=True)
    tokens = torch.from_numpy(rows)
    with torch.no_grad():
        expected = model(tokens[:, :-1], tokens[:, 1:]).item()
    loss = held_out_loss(model, corpus, one_rank, batches=24, micro_batch=6, autocast=None)
    assert loss == pytest.approx(expected, rel=1e-6)
