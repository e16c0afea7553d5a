"""The text as token ids on disk, memory-mapped: built once per (files, tokenizer), then only read.

Several ranks and several runs may ask at once: a lock lets one of them build, and a directory
rename makes the result appear whole or not at all. Must not know about steps.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainctl.errors import TrainctlError
from trainctl.job.plan import Plan, digest
from trainctl.job.rundir import fsync_directory, read_json, remove_tree, write_json

_FORMAT = 1
_TOKENS = "tokens.bin"
_ABOUT = "about.json"
_CHUNK = 1 << 24  # tokens counted at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """tokens: [N] uint16 or uint32. The first `train_tokens` are trained on, the rest is held out.

    A window is `seq_len` tokens and the one after them. unigram_entropy: nats per token of the
    training tokens' frequencies, what a model without context could reach. unit: "byte" or "token".
    """

    tokens: NDArray[Any]
    train_tokens: int
    seq_len: int
    vocab: int
    unigram_entropy: float
    unit: str
    digest: str  # of all token ids: order and held-out part mean something for these only

    @property
    def train_windows(self) -> int:
        return (self.train_tokens - 1) // self.seq_len

    @property
    def held_out_windows(self) -> int:
        return max(0, (len(self.tokens) - self.train_tokens - 1) // self.seq_len)

    def read(self, windows: NDArray[np.int64], into: NDArray[np.int64], *, held_out: bool = False) -> None:
        """Copy windows [...] into [..., seq_len + 1]."""
        base = self.train_tokens if held_out else 0
        rows = into.reshape(-1, self.seq_len + 1)
        for row, window in zip(rows, windows.flat, strict=True):
            start = base + int(window) * self.seq_len
            row[:] = self.tokens[start : start + self.seq_len + 1]


def open_corpus(plan: Plan, alive: Callable[[], None] = lambda: None) -> Corpus:
    """Tokens of the plan's text, built when they are not there yet.

    alive: called again and again while that takes its time. Raises TrainctlError: no such path, nothing
    to read, a vocabulary that does not fit, or too little text for one training and one held-out window
    per rank.
    """
    data, shape = plan.settings.data, plan.settings.model
    source = plan.data_path
    if source is None:
        raise TrainctlError(
            "data-path",
            "data.path is not set, the bundled trainer needs text to train on",
            hint="name a text file, a folder or a .bin file as path under [data]",
        )
    cache = plan.resolve(data.cache_dir)
    try:
        if source.suffix == ".bin" and source.is_file():
            tokens, vocab, home = _nanogpt(source, shape.vocab, cache)
        else:
            tokenizer = plan.resolve(data.tokenizer) if data.tokenizer else None
            tokens, vocab, home = _tokenised(source, data.include, tokenizer, shape.vocab, cache, alive)
        held_out = int(len(tokens) * data.eval_fraction)
        facts = _count(tokens, len(tokens) - held_out, home, alive)
    except OSError as error:
        raise TrainctlError(
            "data-unreadable",
            f"{error.filename or source}: {error.strerror or error}",
            hint="check path and cache_dir under [data]",
        ) from error
    if facts["largest"] >= vocab:
        raise TrainctlError(
            "data-vocab",
            f"{source} has token id {facts['largest']:,}, the vocabulary ends at {vocab - 1:,}",
            hint=f"set vocab = {facts['largest'] + 1} or more under [model]",
        )
    corpus = Corpus(
        tokens=tokens,
        train_tokens=len(tokens) - held_out,
        seq_len=shape.seq_len,
        vocab=vocab,
        unigram_entropy=facts["entropy"],
        digest=facts["digest"],
        unit="byte" if data.tokenizer is None and source.suffix != ".bin" else "token",
    )
    if min(corpus.train_windows, corpus.held_out_windows) < plan.layout.dp:
        raise TrainctlError(
            "data-too-small",
            f"{source} gives {corpus.train_windows:,} training and {corpus.held_out_windows:,} held-out "
            f"sequences of {shape.seq_len:,} tokens, {plan.layout.dp:,} of each are needed, one per rank",
            context=(f"{len(tokens):,} tokens, {data.eval_fraction:.1%} held out",),
            hint="use more text, a smaller model.seq_len or a larger data.eval_fraction",
        )
    return corpus


def _nanogpt(source: Path, vocab: int | str, cache: Path) -> tuple[NDArray[Any], int, Path]:
    """nanoGPT's format: uint16 ids and nothing else."""
    if not isinstance(vocab, int):
        raise TrainctlError(
            "data-vocab",
            f"{source} does not say its vocabulary size, and model.vocab is auto",
            hint="set vocab under [model], 50257 for GPT-2's tokens",
        )
    key = digest([_FORMAT, _stamp(source, source.name)])
    return _map(source, np.dtype(np.uint16)), vocab, cache / key


def _tokenised(
    source: Path,
    include: tuple[str, ...],
    tokenizer: Path | None,
    vocab: int | str,
    cache: Path,
    alive: Callable[[], None],
) -> tuple[NDArray[Any], int, Path]:
    files = _files(source, include)
    encode, own_vocab, tokenizer_digest = _encoder(tokenizer)
    size = vocab if isinstance(vocab, int) else own_vocab
    dtype = np.dtype(np.uint16 if max(size, own_vocab) <= 65535 else np.uint32)
    stamps = [_stamp(path, name) for name, path in files]
    home = cache / digest([_FORMAT, stamps, tokenizer_digest, dtype.name])
    with _locked(home):
        about = read_json(home / _ABOUT)
        if about is None or about.get("size_bytes") != _size(home / _TOKENS):
            _build(home, files, encode, dtype, alive)
    return _map(home / _TOKENS, dtype), size, home


def _files(source: Path, include: tuple[str, ...]) -> list[tuple[str, Path]]:
    """(name below the source, path) in the order in which they are read: sorted by name."""
    if source.is_file():
        return [(source.name, source)]
    if not source.is_dir():
        raise TrainctlError("data-path", f"{source} does not exist", hint="check path under [data]")
    found = {path for pattern in include for path in source.glob(pattern) if path.is_file()}
    if not found:
        raise TrainctlError(
            "data-empty",
            f"no file in {source} matches {', '.join(include)}",
            hint="check path and include under [data]",
        )
    return sorted((path.relative_to(source).as_posix(), path) for path in found)


def _encoder(tokenizer: Path | None) -> tuple[Callable[[bytes], NDArray[Any]], int, str]:
    """(bytes -> token ids, vocabulary size, digest). Without a tokenizer every byte is its own id."""
    if tokenizer is None:
        return lambda text: np.frombuffer(text, np.uint8), 256, "bytes"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TrainctlError(
            "tokenizers-missing",
            f"data.tokenizer is {tokenizer}, and the package that reads it is not installed",
            hint='pip install "trainctl-launcher[tokenizer]"',
        ) from None
    raw = tokenizer.read_bytes()
    try:
        model = Tokenizer.from_str(raw.decode())
    except Exception as error:  # the package raises bare Exception
        raise TrainctlError(
            "tokenizer-unreadable",
            f"{tokenizer} is not a tokenizer: {error}",
            hint="check tokenizer under [data]",
        ) from error

    def encode(text: bytes) -> NDArray[Any]:
        return np.array(model.encode(text.decode("utf-8", "replace")).ids, np.uint32)

    return encode, int(model.get_vocab_size()), hashlib.sha256(raw).hexdigest()


def _build(
    home: Path,
    files: list[tuple[str, Path]],
    encode: Callable[[bytes], NDArray[Any]],
    dtype: np.dtype[Any],
    alive: Callable[[], None],
) -> None:
    """Only under the lock of `home`."""
    for stale in home.parent.glob(f".{home.name}.*.tmp"):  # whoever built this died while building
        remove_tree(stale)
    temporary = home.with_name(f".{home.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        with open(temporary / _TOKENS, "wb") as out:
            for _, path in files:
                alive()
                encode(path.read_bytes()).astype(dtype, copy=False).tofile(out)
            out.flush()
            os.fsync(out.fileno())
        write_json(
            temporary / _ABOUT,
            {"files": len(files), "dtype": dtype.name, "size_bytes": _size(temporary / _TOKENS)},
        )
        if home.exists():  # torn by something else than us: a build appears whole
            remove_tree(home)
        os.rename(temporary, home)
    except BaseException:
        remove_tree(temporary)
        raise
    fsync_directory(home.parent)


def _count(tokens: NDArray[Any], train_tokens: int, home: Path, alive: Callable[[], None]) -> dict[str, Any]:
    """{"entropy": nats, "largest": id, "digest": hex}, found once and kept beside the tokens."""
    path = home / f"counts-{train_tokens}.json"
    with _locked(home):
        known = read_json(path)
        if known is not None and "digest" in known:
            return known
        largest = int(tokens.max()) if len(tokens) else 0
        counts = np.zeros(largest + 1, np.int64)
        content = hashlib.sha256()
        for start in range(0, len(tokens), _CHUNK):
            alive()
            content.update(np.ascontiguousarray(tokens[start : start + _CHUNK]).data)
            trained = tokens[start : max(start, min(start + _CHUNK, train_tokens))]
            counts += np.bincount(trained, minlength=largest + 1)
        share = counts[counts > 0] / max(1, train_tokens)
        facts = {
            "entropy": float(-(share * np.log(share)).sum()),
            "largest": largest,
            "digest": content.hexdigest()[:16],
        }
        write_json(path, facts)
        return facts


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One builder at a time; the kernel releases the lock of a process that dies."""
    home.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home.with_name(f".{home.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if _size(path) < dtype.itemsize:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.asarray(np.memmap(path, dtype, mode="r"))  # a plain view: slicing a memmap object is slow


def _stamp(path: Path, name: str) -> list[Any]:
    found = path.stat()
    return [name, found.st_size, found.st_mtime_ns]


def _size(path: Path) -> int:
    """Bytes of `path`, -1 when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
