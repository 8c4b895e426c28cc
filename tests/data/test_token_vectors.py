"""Trained vectors separate planted topics and are reproducible; files are read correctly, or refused with the line."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from zipfel.data import token_vectors as module
from zipfel.data.token_vectors import read_vectors, train_fasttext
from zipfel.errors import ConfigError, DataError

# Words that share no run of letters, so that only contexts can bring them together
FRUIT = ["apple", "mango", "grufi", "dentux", "olyvek", "harzip"]
TOOLS = ["hammer", "spoke", "wrench", "jiklo", "tubafy", "cvendi"]


def planted(texts=600, seed=0):
    """Return titles and contents, each of words of one topic; both of a row have different topics."""
    numbers = np.random.default_rng(seed)
    fields = {"title": [], "content": []}
    for row in range(texts):
        for topic, field in zip((FRUIT, TOOLS) if row % 2 else (TOOLS, FRUIT), fields, strict=True):
            fields[field].append(" ".join(numbers.choice(topic, 12)).title())
    return fields


def trained(terms=(*FRUIT, *TOOLS), texts=None, seed=0, dimension=16, **more):
    texts = planted() if texts is None else texts
    return train_fasttext(texts, terms, dimension, np.random.default_rng(seed), **more)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def gap(vectors):
    """Return by how much words of one topic lie closer than words of two; the first half of the rows is one topic."""
    cosines, half = unit(vectors) @ unit(vectors).T, len(vectors) // 2
    side = np.arange(len(vectors)) // half
    same = (side[:, None] == side) & ~np.eye(len(vectors), dtype=bool)
    return cosines[same].mean() - cosines[side[:, None] != side].mean()


# Trained


def test_words_that_share_contexts_lie_closer_and_fields_do_not_mix():
    vectors = trained()
    assert vectors.shape == (12, 16)
    assert vectors.dtype == np.float32
    assert gap(vectors) > 0.5
    joined = {"text": [" ".join(row) for row in zip(*planted().values(), strict=True)]}
    assert gap(vectors) > gap(trained(texts=joined)) + 0.1  # where topics of two fields met at their ends


def test_few_texts_are_read_more_often_until_their_vectors_point_apart():
    few = planted(texts=60)  # 1,440 words
    by_default, five = (unit(trained(texts=few, **more)).mean(axis=0) for more in ({}, {"epochs": 5}))
    assert np.square(five).sum() > 0.9  # the mean cosine of two words
    assert np.square(by_default).sum() < 0.7
    assert [module.passes(words) for words in (0, 99_000, 500_000, 2_000_000, 10**9)] == [100, 100, 20, 5, 5]


def test_more_than_one_thread_learns_as_well(monkeypatch):
    calls = watched(monkeypatch)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    many = planted(texts=10_000)  # 240,000 words
    assert gap(trained(texts=many, deterministic=False, epochs=1)) > 0.5
    trained(epochs=1)
    assert [call["workers"] for call in calls] == [3, 1]


def test_rows_are_terms_whatever_their_order():
    order = np.random.default_rng(1).permutation(12)
    terms = [*FRUIT, *TOOLS]
    np.testing.assert_array_equal(trained([terms[i] for i in order]), trained()[order])


def test_terms_of_several_words_are_the_means_of_their_words():
    """Also where a word is no term itself, and where the texts do not have it."""
    vectors = trained(["apple", "apple mango", "mango", "apple apple mango", "apple unseen", "unseen", "spoke wrench"])
    np.testing.assert_allclose(vectors[1], (vectors[0] + vectors[2]) / 2, rtol=1e-5)
    np.testing.assert_allclose(vectors[3], (2 * vectors[0] + vectors[2]) / 3, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(vectors[4], (vectors[0] + vectors[5]) / 2, rtol=1e-5)
    spoke, wrench = trained(["spoke", "wrench"])
    np.testing.assert_allclose(vectors[6], (spoke + wrench) / 2, rtol=1e-5)


def test_words_that_the_texts_lack_are_made_of_subwords():
    terms = ["wrench", "apple", "wrenches", "x", "東京"]
    vectors = trained(terms)
    cosines = unit(vectors) @ unit(vectors).T
    assert cosines[2, 0] > cosines[2, 1] + 0.3
    assert (np.linalg.norm(vectors, axis=1) > 0).all()


def test_rare_words_are_learned_where_they_are_terms():
    texts = {"text": [*planted()["title"], "Onceonly apple"]}
    calls = trained(["onceonly"], texts), trained(["onceonly"], {"text": texts["text"][:-1]})
    assert (calls[0] != calls[1]).all()  # its own vector, and that of its subwords


def test_words_in_no_term_are_context_unless_rare(monkeypatch):
    calls = watched(monkeypatch)
    trained(["apple", "apple rare"], {"text": ["apple often"] * 5 + ["apple rare other"] * 4}, dimension=4)
    assert calls[0]["words"] == {"apple": 9, "often": 5, "rare": 4}


def watched(monkeypatch):
    """Return a record of the arguments that gensim gets."""
    from gensim.models import fasttext

    calls = []

    train = fasttext.FastText.train

    def watch(self, sentences, **arguments):
        words = {word: self.wv.get_vecattr(word, "count") for word in self.wv.index_to_key}
        shown = {"workers": self.workers, "words": words, "bucket": self.wv.bucket, "sentences": list(sentences)}
        calls.append(shown | arguments)
        return train(self, sentences, **arguments)

    monkeypatch.setattr(fasttext.FastText, "train", watch)
    return calls


def test_long_texts_are_cut_into_sentences_that_gensim_reads_to_the_end(monkeypatch):
    calls = watched(monkeypatch)
    trained(["a", "b"], {"title": ["a b", ""], "text": ["a " * 25_000, "C++ b"]}, epochs=1, symbols=True, dimension=4)
    assert list(map(len, calls[0]["sentences"])) == [2, 10_000, 10_000, 5_000, 4]
    assert calls[0]["sentences"][-1] == ["c", "+", "+", "b"]
    assert (calls[0]["total_examples"], calls[0]["total_words"]) == (5, 25_006)


def test_no_more_buckets_than_there_are_runs_of_letters(monkeypatch):
    from gensim.models.fasttext_inner import compute_ngrams

    calls = watched(monkeypatch)
    words = ["a", "be", "cat", "grösse", "wonderful"]
    trained(words, {"text": [" ".join(words)]}, dimension=4)
    kept = [*calls[0]["words"]]
    assert "grösse" in kept
    assert calls[0]["bucket"] == sum(len(compute_ngrams(word, 3, 6)) for word in kept)
    monkeypatch.setattr(module, "BUCKETS", 7)
    trained(words, {"text": [" ".join(words)]}, dimension=4)
    assert calls[1]["bucket"] == 7


@pytest.mark.parametrize(
    "texts",
    [{}, {"title": []}, {"title": ["", " "], "text": ["", "?!"]}, {"title": ["apple", "mango"], "text": ["spoke", ""]}],
)
def test_where_nothing_can_be_learned_it_says_so(texts):
    with pytest.raises(DataError, match=r"cannot train token vectors: none of \d texts has two words"):
        trained(texts=texts)


def test_where_all_but_one_word_is_left_out_as_rare_nothing_can_be_learned():
    with pytest.raises(DataError, match="none of 4 texts has two words that are frequent or in a term"):
        trained(["apple"], {"text": ["an apple a day"] * 4})


def test_few_texts_some_of_them_empty_and_no_terms():
    texts = {"title": ["red apple", "", "?"], "text": ["", "", "apple"]}
    assert np.isfinite(trained(["red", "red apple"], texts)).all()
    assert trained([], planted(20)).shape == (0, 16)


DIGEST = """
import hashlib
from test_token_vectors import trained
print(hashlib.sha256(trained(["apple", "apple unseen", "hammer"]).tobytes()).hexdigest())
"""


def test_the_same_bits_in_every_process(in_other_processes):
    digests = in_other_processes(DIGEST, Path(__file__).parent)
    here = trained(["apple", "apple unseen", "hammer"])
    assert digests == {hashlib.sha256(here.tobytes()).hexdigest()}
    assert (here != trained(["apple", "apple unseen", "hammer"], seed=1)).all()


def test_importing_needs_neither_torch_nor_gensim(monkeypatch):
    code = "import sys, zipfel.data.token_vectors; assert not {'torch', 'gensim'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r"pip install gensim, or give token vectors as text \(\.vec\)"):
        trained()


# Read from text

VEC = "4 3\nthe 0.5 1 2 \nHeart 1 0 0 \nattack 0 -2e-1 4 \nnew\xa0york 7 8 9 \n"


def written(tmp_path, content, name="words.vec"):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / name


TERMS = ["heart attack", "attack", "unknown", "new\xa0york", "unknown words", "unknown attack"]
ROWS = [[0.5, -0.1, 2], [0, -0.2, 4], [0, 0, 0], [7, 8, 9], [0, 0, 0], [0, -0.2, 4]]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\ufeff"])
@pytest.mark.parametrize("name", ["words.vec", "words.vec.gz", "words.txt"])
def test_text_is_read_with_and_without_header_and_packed(tmp_path, header, ends, name):
    content = VEC if header else VEC.removeprefix("4 3\n").replace(" \n", "\n")
    content = ends + content if ends == "\ufeff" else content.replace("\n", ends) + ends
    vectors, found = read_vectors(written(tmp_path, content, name), TERMS)
    np.testing.assert_allclose(vectors, ROWS, rtol=1e-6)
    assert vectors.dtype == np.float32
    assert found.tolist() == [True, True, False, True, False, True]


def test_what_gensim_writes_is_read_back(tmp_path):
    from gensim.models import KeyedVectors

    values = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    kept = KeyedVectors(7)
    kept.add_vectors([f"word{i}" for i in range(50)], values)
    kept.save_word2vec_format(str(tmp_path / "words.vec"))
    vectors, found = read_vectors(tmp_path / "words.vec", [f"word{i}" for i in reversed(range(50))])
    np.testing.assert_array_equal(vectors, values[::-1])
    assert found.all()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["Paris", "paris", "PARIS", "paris"], 1),  # exact, and the first of two
        (["paris", "Paris"], 0),
        (["PARIS", "Paris"], 0),
        (["parish", "pari", "Paris"], 2),
    ],
)
def test_an_exact_word_wins_and_then_the_first_but_for_case(tmp_path, words, line):
    content = "".join(f"{word} {number + 1} 0\n" for number, word in enumerate(words))
    vectors, found = read_vectors(written(tmp_path, content), ["paris"])
    assert (vectors.tolist(), found.tolist()) == ([[line + 1, 0]], [True])


def test_words_match_as_tokens_are_casefolded(tmp_path):
    path = written(tmp_path, "Größe 1 2\nΣΊΣΥΦΟΣ 3 4\n")
    assert read_vectors(path, ["grösse", "σίσυφοσ"])[0].tolist() == [[1, 2], [3, 4]]


def test_a_term_of_several_words_that_the_file_has_is_taken_from_it(tmp_path):
    path = written(tmp_path, "heart 1 2\n. . . 9 9\nheart attack 5 6\nattack 3 4\n")
    vectors, _ = read_vectors(path, ["heart attack", "attack heart", "heart"])
    assert vectors.tolist() == [[5, 6], [2, 3], [1, 2]]


def test_no_terms_are_no_rows(tmp_path):
    vectors, found = read_vectors(written(tmp_path, VEC), [])
    assert (vectors.shape, found.shape) == ((0, 3), (0,))


def test_numbers_of_unwanted_words_are_not_read(tmp_path, monkeypatch):
    calls, numbers = [], module._numbers
    monkeypatch.setattr(module, "_numbers", lambda values: calls.append(values) or numbers(values))
    read_vectors(written(tmp_path, "a 1 2\nb 3 4\nc 5 6\nB 7 8\n"), ["b"])
    assert calls == [b"1 2", b"3 4"]  # the first row's too, to know that they are numbers


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", ": holds no vectors"),
        ("\n\n", ": holds no vectors"),
        ("0 5\n", ": holds no vectors"),
        ("a\n", ":1: expected a word and its numbers, found 1 parts"),
        ("2 3\na 1 2 3\nb 1 2\n", ":3: expected a word and 3 numbers, found 3 parts"),
        ("2 3\nx 1 2 3\ny 1 2 3 4\n", ":3: expected a word and 3 numbers, found 5 parts"),
        ("x 1 2 3\ny 1  2 3\n", ":2: expected a word and 3 numbers, found 5 parts"),
        ("2 4\na 1 2 3\nb 1 2 3\n", ":2: expected a word and 4 numbers, found 4 parts"),
        ("2 2\na 1 2 3\nb 1 2 3\n", ":2: expected a word and 2 numbers, found 4 parts"),
        ("2 0\na 1 2 3\nb 1 2 3\n", ":2: expected a word and 1 numbers, found 4 parts"),
        ("2 99999999999999999\na 1 2 3\n", ":2: expected a word and 99999999999999999 numbers, found 4 parts"),
        ("3 2\na 1 2\nb 1 2\n", ":3: holds 2 vectors, but its header says 3"),
        ("1 2\na 1 2\nb 1 2\n", ":3: holds 2 vectors, but its header says 1"),
        ("x 1 2\na 1 two\n", ":2: could not convert string to float: b'two'"),
        ("some plain text\n", ":1: could not convert string to float: b'plain'"),
        ("x 1 2\nA 1 nan\n", ":2: expected finite numbers, found inf, nan, or one too large for float32"),
        ("x 1 2\na -inf 1\n", ":2: expected finite numbers, found inf, nan, or one too large for float32"),
        ("x 1 2\na 1e39 1\n", ":2: expected finite numbers, found inf, nan, or one too large for float32"),
        (b"x 1 2\na\xff 1 2\n", ":2: 'utf-8' codec can't decode byte 0xff in position 1: invalid start byte"),
    ],
)
def test_a_broken_file_is_refused_by_name_and_line(tmp_path, content, problem):
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_vectors(path, ["a", "b"])
    assert str(caught.value) == f"{path}{problem}"


def test_files_that_cannot_be_read(tmp_path):
    for name in ("gone.vec", "gone.bin"):
        with pytest.raises(DataError, match=f"{name}: cannot be read: No such file"):
            read_vectors(tmp_path / name, ["a"])
    path = written(tmp_path, VEC * 50, "words.vec.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"words\.vec\.gz: broken gzip file"):
        read_vectors(path, ["a"])


# Read from Facebook's binary


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a small FastText model of gensim, and where it is written as Facebook's."""
    from gensim.models.fasttext import FastText, save_facebook_model

    texts = [["Heart", "attack", "of", "the", "heart"], ["Paris", "attack", "Ab"]] * 3
    made = FastText(texts, vector_size=6, min_count=1, bucket=50, epochs=1, workers=1, min_n=4)
    path = tmp_path_factory.mktemp("facebook") / "model.bin"
    save_facebook_model(made, str(path))
    return made.wv, path


def test_a_binary_model_gives_words_other_cases_subwords_and_means(model):
    wv, path = model
    terms = ["heart", "paris", "attacks", "heart attack", "attacks x", "x", "ab", "cd ef"]
    vectors, found = read_vectors(path, terms)
    attacks = wv["attacks"]  # unseen, so of its runs of letters
    rows = [wv["heart"], wv["Paris"], attacks, (wv["heart"] + wv["attack"]) / 2, attacks, 0 * attacks, wv["Ab"]]
    np.testing.assert_allclose(vectors[:-1], rows, rtol=1e-5)
    np.testing.assert_allclose(vectors[-1], (wv["cd"] + wv["ef"]) / 2, rtol=1e-5)
    assert found.tolist() == [True, True, True, True, True, False, True, True]  # "x" has no run of four letters
    assert vectors.dtype == np.float32


def test_a_binary_model_without_subwords(tmp_path):
    from gensim.models.fasttext import FastText, save_facebook_model

    made = FastText([["a", "b"]], vector_size=4, min_count=1, max_n=0, epochs=1, workers=1)
    save_facebook_model(made, str(tmp_path / "model.bin"))
    vectors, found = read_vectors(tmp_path / "model.bin", ["a", "unseen", "b unseen"])
    np.testing.assert_array_equal(vectors, [made.wv["a"], np.zeros(4), made.wv["b"]])
    assert found.tolist() == [True, False, True]


def test_a_binary_model_that_is_cut_off_is_refused_wherever(model, tmp_path):
    """The last third holds the output weights of skip-gram, which vectors do not need."""
    content = model[1].read_bytes()
    inputs = 92 + sum(len(word.encode()) + 10 for word in model[0].index_to_key) + 17 + 4 * 6 * (50 + len(model[0]))
    path = tmp_path / "model.bin"
    for length in [*range(0, 200, 3), *range(200, inputs, 97), inputs - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"model\.bin: not a (complete )?FastText model") as caught:
            read_vectors(path, ["heart"])
        assert "\n" not in str(caught.value)
    path.write_bytes(content[:inputs])
    assert read_vectors(path, ["heart"])[1].all()


@pytest.mark.parametrize("place", range(8, 92, 4))
def test_a_binary_model_with_a_wrong_head_is_read_or_refused(model, tmp_path, place):
    content = bytearray(model[1].read_bytes())
    for value in (-1, 0, 1 << 30):
        content[place : place + 4] = struct.pack("<i", value)
        path = written(tmp_path, bytes(content), "model.bin")
        vectors, known = None, None
        with suppress(DataError):  # and nothing else
            vectors, known = read_vectors(path, ["heart", "unseen"])
        assert vectors is None or (vectors.shape[0] == 2 and np.isfinite(vectors).all() and not vectors[~known].any())


def test_what_is_no_model_of_facebook_or_not_finite_is_refused(model, tmp_path):
    for content in (b"", VEC.encode() * 9, gzip.compress(model[1].read_bytes())):
        with pytest.raises(DataError, match=r"model\.bin: not a FastText model \(\.bin\) of Facebook's"):
            read_vectors(written(tmp_path, content, "model.bin"), ["heart"])
    content = model[1].read_bytes()
    at = content.index(model[0].vectors_vocab[model[0].key_to_index["heart"]].tobytes())
    broken = content[:at] + struct.pack("<f", np.nan) + content[at + 4 :]
    with pytest.raises(DataError, match=r"model\.bin: the vector of 'heart' has a value that is not finite"):
        read_vectors(written(tmp_path, broken, "model.bin"), ["attack", "heart"])
