import pytest
import torch
import torch.nn.functional as F

from payload.model import GPT, Attention, ffn_hidden, parameter_count, rotary_tables, rotate
from trainctl.errors import TrainctlError
from trainctl.job.settings import Model

SHAPES = [
    Model(layers=2, hidden=32, heads=4, seq_len=16),
    Model(layers=3, hidden=48, heads=6, kv_heads=2, seq_len=8, tied_head=False),
    Model(layers=1, hidden=64, heads=2, kv_heads=1, ffn_hidden=40, seq_len=8),
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_closed_form_parameter_count_is_that_of_the_model(shape):
    assert parameter_count(shape, 300) == sum(p.numel() for p in GPT(shape, 300).parameters())


def test_ffn_width_is_eight_thirds_rounded_up_to_32():
    assert ffn_hidden(Model(hidden=256)) == 704  # 682.67 -> 22 x 32
    assert ffn_hidden(Model(hidden=96)) == 256  # exactly 8 x 32


def test_rms_norm_of_the_model_is_the_textbook_one():
    norm = GPT(SHAPES[0], 10).norm
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, 32)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (32,), norm.weight, 1e-5))


def test_rotary_scores_depend_on_the_distance_only():
    cos, sin = rotary_tables(32, 8, 10_000.0)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (rotate(x.expand(32, 8), cos, sin) for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in (0, 3, 17):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)
    assert (scores[5, 5] - scores[5, 4]).abs() > 1e-3
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(32))


def test_rotary_tables_follow_the_formula():
    cos, sin = rotary_tables(10, 4, 100.0)
    assert cos[3, 1].item() == pytest.approx(0.955336, abs=1e-6)  # cos(3 * 100**(-2/4)) = cos(0.3)
    assert sin[2, 0].item() == pytest.approx(0.909297, abs=1e-6)  # sin(2)


def test_grouped_query_attention_equals_repeated_heads():
    grouped = Attention(Model(hidden=32, heads=4, kv_heads=2))
    full = Attention(Model(hidden=32, heads=4))
    q, k, v = grouped.qkv.weight.split((32, 16, 16))
    repeat = [x.view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32) for x in (k, v)]
    full.qkv.weight = torch.nn.Parameter(torch.cat((q, *repeat)))
    full.out.weight = grouped.out.weight
    x, tables = torch.randn(2, 7, 32), rotary_tables(7, 8, 10_000.0)
    torch.testing.assert_close(grouped(x, *tables), full(x, *tables))


def test_no_position_sees_its_future():
    model = GPT(SHAPES[1], 50)
    tokens = torch.randint(0, 50, (1, 8))
    before = model.logits(tokens)
    tokens[0, 5] = (tokens[0, 5] + 1) % 50
    after = model.logits(tokens)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=0, rtol=0)
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_initial_loss_is_that_of_guessing_and_residual_projections_are_scaled():
    model = GPT(Model(layers=8, hidden=128, heads=4, seq_len=32), 256)
    tokens = torch.randint(0, 256, (8, 33))
    assert model(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(5.545, abs=0.1)  # ln 256
    assert model.blocks[3].ffn.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert model.blocks[3].attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_head_shares_the_embedding_only_when_tied(tied):
    model = GPT(Model(hidden=32, heads=4, seq_len=8, tied_head=tied), 20)
    assert (model.head.weight is model.embedding.weight) == tied


@pytest.mark.parametrize(
    ("shape", "ref"),
    [
        (Model(hidden=30, heads=4), "model-heads"),
        (Model(hidden=12, heads=4), "model-heads"),
        (Model(hidden=32, heads=4, kv_heads=3), "model-kv-heads"),
        (Model(experts=4), "model-experts"),
    ],
)
def test_impossible_shapes_are_refused_in_words(shape, ref):
    with pytest.raises(TrainctlError) as caught:
        GPT(shape, 10)
    assert caught.value.ref == ref
    assert caught.value.hint
