import json
import os
import threading

import numpy as np
import pytest

from payload.corpus import open_corpus
from trainctl.errors import TrainctlError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "folder/b.txt").write_bytes(b"bb" * 100)
    (tmp_path / "folder/sub/a.txt").write_bytes(b"cc" * 100)
    (tmp_path / "folder/a.md").write_bytes(b"aa" * 100)
    (tmp_path / "folder/skipped.log").write_bytes(b"x")
    return tmp_path / "folder"


def caches(tmp_path):
    return sorted(p for p in (tmp_path / "cache").iterdir() if p.is_dir())


def test_bytes_of_a_folder_in_the_order_of_names(make_plan, folder):
    corpus = open_corpus(make_plan(data={"path": "folder"}))
    assert bytes(np.asarray(corpus.tokens, np.uint8)) == b"a" * 200 + b"b" * 200 + b"c" * 200
    assert corpus.tokens.dtype == np.uint16
    assert (corpus.vocab, corpus.unit) == (256, "byte")
    assert corpus.train_tokens == 540


def test_windows_do_not_reach_into_the_held_out_part(make_plan, folder):
    corpus = open_corpus(make_plan(data={"path": "folder"}))
    row = np.zeros((1, 17), np.int64)
    corpus.read(np.array([corpus.train_windows - 1]), row)
    assert (corpus.train_windows - 1) * 16 + 17 <= corpus.train_tokens
    corpus.read(np.array([0]), row, held_out=True)
    assert np.array_equal(row[0], corpus.tokens[540:557])
    assert 540 + corpus.held_out_windows * 16 + 1 <= 600


def test_entropy_of_the_training_bytes(make_plan, folder):
    """540 training bytes: 200 a, 200 b, 140 c; -sum p ln p = 1.0858 nats."""
    corpus = open_corpus(make_plan(data={"path": "folder"}))
    assert corpus.unigram_entropy == pytest.approx(1.0858, abs=1e-4)


def test_cache_is_kept_and_rebuilt_when_a_file_changes(make_plan, folder, tmp_path):
    plan = make_plan(data={"path": "folder"})
    open_corpus(plan)
    (first,) = caches(tmp_path)
    stamp = (first / "tokens.bin").stat().st_mtime_ns
    open_corpus(plan)
    assert (first / "tokens.bin").stat().st_mtime_ns == stamp
    (folder / "b.txt").write_bytes(b"zz" * 100)  # same size
    os.utime(folder / "b.txt", ns=(1, 1))
    assert 122 in open_corpus(plan).tokens
    assert len(caches(tmp_path)) == 2


def test_torn_cache_is_never_used(make_plan, folder, tmp_path):
    plan = make_plan(data={"path": "folder"})
    open_corpus(plan)
    (home,) = caches(tmp_path)
    whole = (home / "tokens.bin").read_bytes()
    for tear in (
        lambda: (home / "tokens.bin").write_bytes(whole[:500]),
        lambda: (home / "about.json").write_text("{"),
        lambda: (home / "tokens.bin").unlink(),
    ):
        tear()
        assert open_corpus(plan).tokens.tobytes() == whole


def test_many_builders_at_once_end_with_one_whole_cache(make_plan, tmp_path):
    plan = make_plan()
    results, failures = [], []

    def build():
        try:
            results.append(open_corpus(plan).tokens.tobytes())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert len(results) == 8
    assert len(set(results)) == 1
    assert len(caches(tmp_path)) == 1


def test_nanogpt_bin_is_read_as_it_is(make_plan, tmp_path):
    ids = np.arange(1000, dtype=np.uint16)
    ids.tofile(tmp_path / "train.bin")
    corpus = open_corpus(make_plan(data={"path": "train.bin"}, model={"vocab": 1000}))
    assert np.array_equal(corpus.tokens, ids)
    assert (corpus.vocab, corpus.unit) == (1000, "token")
    with pytest.raises(TrainctlError, match="token id 999"):
        open_corpus(make_plan(data={"path": "train.bin"}, model={"vocab": 999}))


def test_tokenizer_json_gives_its_ids_and_vocabulary(make_plan, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "cat": 1, "dog": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "pets.txt").write_text("cat dog cow " * 200)
    corpus = open_corpus(make_plan(data={"path": "pets.txt", "tokenizer": "tokenizer.json"}))
    assert list(corpus.tokens[:4]) == [1, 2, 0, 1]
    assert (corpus.vocab, corpus.unit) == (3, "token")


def test_large_vocabulary_needs_wider_tokens(make_plan):
    assert open_corpus(make_plan(model={"vocab": 65536})).tokens.dtype == np.uint32


@pytest.mark.parametrize(
    ("data", "ref"),
    [
        ({"path": None}, "data-path"),
        ({"path": "absent"}, "data-path"),
        ({"path": "folder", "include": ["*.c"]}, "data-empty"),
        ({"path": "short.txt"}, "data-too-small"),
        ({"path": "zero.txt"}, "data-too-small"),
        ({"path": "some.bin"}, "data-vocab"),
        ({"path": "short.txt", "tokenizer": "short.txt"}, "tokenizer-unreadable"),
        ({"path": "short.txt", "tokenizer": "absent.json"}, "data-unreadable"),
        ({"path": "folder", "cache_dir": "short.txt/below"}, "data-unreadable"),
    ],
)
def test_bad_data_is_refused_in_words(make_plan, folder, tmp_path, data, ref):
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "zero.txt").touch()
    (tmp_path / "some.bin").write_bytes(bytes(1000))
    with pytest.raises(TrainctlError) as caught:
        open_corpus(make_plan(data=data))
    assert caught.value.ref == ref
    assert caught.value.hint


def test_counts_are_kept_beside_the_tokens(make_plan, tmp_path):
    corpus = open_corpus(make_plan())
    (home,) = caches(tmp_path)
    kept = json.loads((home / f"counts-{corpus.train_tokens}.json").read_text())
    assert kept["entropy"] == corpus.unigram_entropy
