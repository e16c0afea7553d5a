"""The GPT: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied head.

Shapes: B sequences, T positions, C hidden, H query heads, K key/value heads, D head width.
Must not know about ranks, devices or steps.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainctl.errors import TrainctlError
from trainctl.job.settings import Model

_INIT_STD = 0.02  # GPT-2, Radford et al. 2019


def kv_heads(shape: Model) -> int:
    """Key and value heads: what the settings say, or one per query head."""
    return shape.heads if shape.kv_heads == "auto" else shape.kv_heads


def ffn_hidden(shape: Model) -> int:
    """Inner width of SwiGLU: 8/3 of hidden keeps the size of a 4x MLP with two matrices
    (Shazeer 2020), rounded up to a multiple of 32."""
    if shape.ffn_hidden != "auto":
        return shape.ffn_hidden
    return math.ceil(8 * shape.hidden / 3 / 32) * 32


def parameter_count(shape: Model, vocab: int) -> int:
    """Trained numbers of the model, in closed form."""
    head_width = shape.hidden // shape.heads
    attention = shape.hidden * head_width * (2 * shape.heads + 2 * kv_heads(shape))
    block = attention + 3 * shape.hidden * ffn_hidden(shape) + 2 * shape.hidden
    embeddings = vocab * shape.hidden * (1 if shape.tied_head else 2)
    return embeddings + shape.layers * block + shape.hidden


def check_shape(shape: Model) -> None:
    """Raises TrainctlError when the sizes do not divide or ask for what this model has not."""
    if shape.experts:
        raise TrainctlError(
            "model-experts",
            f"model.experts is {shape.experts}, the bundled trainer has dense blocks only",
            hint="set experts = 0 under [model], or launch another trainer with [job] script",
        )
    if shape.hidden % shape.heads or (shape.hidden // shape.heads) % 2:
        raise TrainctlError(
            "model-heads",
            f"{shape.heads} heads divide a hidden width of {shape.hidden} into "
            f"{shape.hidden / shape.heads:g} each, an even whole number is needed",
            hint="change heads or hidden under [model]",
        )
    if shape.heads % kv_heads(shape):
        raise TrainctlError(
            "model-kv-heads",
            f"{kv_heads(shape)} key/value heads do not divide {shape.heads} query heads",
            hint="change kv_heads under [model]",
        )


def rotary_tables(seq_len: int, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency, each [T, D/2], float32 (Su et al. 2021)."""
    frequencies = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of x [..., T, D] by its position's angle; same type as x."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention in which each key/value head serves H/K query heads."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, kv_heads(shape)
        self.head_width = shape.hidden // shape.heads
        rows = (self.heads + 2 * self.kv_heads) * self.head_width
        self.qkv = nn.Linear(shape.hidden, rows, bias=False)
        self.out = nn.Linear(self.heads * self.head_width, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]; cos and sin [T, D/2]."""
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.head_width).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            is_causal=True,
            enable_gqa=self.kv_heads != self.heads,
        )
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden, 2 * ffn_hidden(shape), bias=False)
        self.down = nn.Linear(ffn_hidden(shape), shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        result: Tensor = self.down(F.silu(gate) * up)
        return result


class Block(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.ffn = SwiGLU(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        result: Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class GPT(nn.Module):
    """Decoder-only transformer. Parameters are float32; a caller may autocast around `forward`."""

    def __init__(self, shape: Model, vocab: int, device: torch.device | str = "cpu") -> None:
        """Raises TrainctlError when the sizes do not divide."""
        check_shape(shape)
        super().__init__()
        with torch.device(device):
            self.embedding = nn.Embedding(vocab, shape.hidden)
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
            self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
            self.head = nn.Linear(shape.hidden, vocab, bias=False)
            # Constants, not buffers: DistributedDataParallel would broadcast those in every forward.
            self._cos, self._sin = rotary_tables(shape.seq_len, shape.hidden // shape.heads, shape.rope_theta)
        self._initialise(shape.layers)
        if shape.tied_head:
            self.head.weight = self.embedding.weight

    def _initialise(self, layers: int) -> None:
        """GPT-2: normal weights; the two matrices that write into the residual stream of each block
        are scaled by 1/sqrt(2 * layers), so that its variance does not grow with depth."""
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith(("attention.out.weight", "ffn.down.weight"))
                nn.init.normal_(weight, std=_INIT_STD / math.sqrt(2 * layers) if residual else _INIT_STD)

    def logits(self, tokens: Tensor) -> Tensor:
        """[B, T] token ids -> [B, T, vocab]."""
        length = tokens.shape[1]
        cos, sin = self._cos[:length], self._sin[:length]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        result: Tensor = self.head(self.norm(x))
        return result

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token; tokens and targets [B, T]."""
        logits = self.logits(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
