"""Tokens against a slow statement of the rules and in many scripts; tf-idf against scikit-learn and by hand."""

from __future__ import annotations

import json
import math
import time
import unicodedata

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer

from zipfel.data.dataset import Dataset, Part
from zipfel.data.text import TextFeatures, TextSettings, Tfidf, featurized
from zipfel.data.tokens import located, tokenize
from zipfel.errors import ConfigError, DataError

# Tokens

ANY = st.characters(exclude_categories=())  # all of Unicode, lone surrogates too
ODD = st.sampled_from(
    "aZ9 ´¨'’+#%&@€™½ßΣςİ\0\n\xad\u0301\u0345\u3099\u200b\u200d\ufe0f\U000e0100हि்ก็ำ人々ー、・𠀀👩🇩\ud800"
)


@given(st.text(ANY | ODD), st.booleans())
@settings(max_examples=400, deadline=None)
def test_tokens_are_those_of_the_plain_statement(text, symbols):
    assert tokenize(text, symbols) == reference.tokens(text, symbols)


@given(st.text(ANY | ODD), st.booleans())
@settings(max_examples=400, deadline=None)
def test_located_tokens_are_the_same_and_stand_in_order(text, symbols):
    found = located(text, symbols)
    assert [piece.token for piece in found] == tokenize(text, symbols)
    assert all(0 <= piece.start < piece.end <= len(text) for piece in found)
    assert [piece.start for piece in found] == sorted(piece.start for piece in found)


@pytest.mark.parametrize("symbols", [False, True])
def test_every_character_is_located_in_words(symbols):
    codes = [*range(0x20000), *range(0x20000, 0x110000, 997), *range(0xE0000, 0xE0200)]
    for start in range(0, len(codes), 200):
        text = ". ".join(f"a{chr(code)}b{chr(code)}" for code in codes[start : start + 200])
        assert [piece.token for piece in located(text, symbols)] == tokenize(text, symbols)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Red, red", [("red", "Red"), ("red", "red")]),
        ("👍 Straße 👍", [("strasse", "Straße")]),
        ("cafe\u0301s", [("cafés", "cafe\u0301s")]),
        ("Wör\xadter", [("wörter", "Wör\xadter")]),
        ("ﬁne ½㎏", [("fine", "ﬁne"), ("1", "½"), ("2kg", "½㎏")]),
        ("ab東京都。", [("ab", "ab"), ("東京", "東京"), ("京都", "京都")]),
        ("한\u1100\u1161국", [("한가국", "한\u1100\u1161국")]),
        ("ﾊﾟﾊﾟ", [("パパ", "ﾊﾟﾊﾟ")]),
        ("हिन्दी है", [("हिन्दी", "हिन्दी"), ("है", "है")]),
        ("don´t", [("don", "don"), ("t", "t")]),
    ],
)
def test_tokens_stand_where_they_were_made(text, expected):
    assert [(piece.token, text[piece.start : piece.end]) for piece in located(text)] == expected


def test_places_of_terms_runs_and_repeated_words():
    features = TextFeatures.fit(["red apple pie", "red apple"], settings=TextSettings(min_count=1, ngrams=3))
    text = "A red apple! Red. RED Apple pie"
    found = {features.terms[term]: [text[a:b] for a, b in places] for term, places in features.places(text).items()}
    assert found == {
        "red": ["red", "Red", "RED"],
        "apple": ["apple", "Apple"],
        "pie": ["pie"],
        "red apple": ["red apple", "RED Apple"],
        "apple pie": ["Apple pie"],
        "red apple pie": ["RED Apple pie"],
    }
    counted = features.count([text])
    assert {term: len(places) for term, places in features.places(text).items()} == dict(
        zip(counted.indices.tolist(), counted.data.tolist(), strict=True)
    )


@pytest.mark.parametrize("symbols", [False, True])
def test_every_character_is_tokenized_as_by_the_slow_reference(symbols):
    """All characters of the two planes that have scripts, and of a few others; some hundred in each text."""
    codes = [*range(0x20000), *range(0x20000, 0x110000, 997), *range(0xE0000, 0xE0200)]
    for start in range(0, len(codes), 200):
        text = ". ".join(f"a{chr(code)}b{chr(code)}" for code in codes[start : start + 200])
        assert tokenize(text, symbols) == reference.tokens(text, symbols)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\r\n", []),
        ("...!?", []),
        ("Hello, World", ["hello", "world"]),
        ("x_y-z a.b", ["x", "y", "z", "a", "b"]),
        ("don't don’t don´t", ["don", "t"] * 3),
        ("a\x00b\x07c\x85d", ["a", "b", "c", "d"]),
        ("3.5 2nd B12", ["3", "5", "2nd", "b12"]),
        ("Straße STRASSE straſse", ["strasse"] * 3),
        ("ΟΔΟΣ οδος οδοσ", ["οδοσ"] * 3),
        ("ταΐζω ΤΑΪ́ΖΩ", ["ταΐζω"] * 2),
        ("Москва МОСКВА", ["москва"] * 2),
        ("السلام عليكم، مرحبا؟", ["السلام", "عليكم", "مرحبا"]),
        ("שָׁלוֹם עוֹלָם", [unicodedata.normalize("NFKC", word) for word in ("שָׁלוֹם", "עוֹלָם")]),
        ("हिन्दी में लिखा।", ["हिन्दी", "में", "लिखा"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("한국어 문장입니다.", ["한국어", "문장입니다"]),
        ("東京都", ["東京", "京都"]),
        ("東京・大阪、京都。", ["東京", "大阪", "京都"]),
        ("人々", ["人々"]),
        ("東", ["東"]),
        ("データ", ["デー", "ータ"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ"]),
        ("葛\U000e0100飾区", ["葛飾", "飾区"]),
        ("iPhone手机5号", ["iphone", "手机", "5", "号"]),
        ("ที่นี่ดี", ["ที่นี่", "นี่ดี"]),
        ("กา\u200bขา", ["กา", "ขา"]),
        ("กา\u2060ขา", ["กา", "าข", "ขา"]),
        ("１２３ ＡＢＣ", ["123", "abc"]),
        ("ﬁne №5 ㎏", ["fine", "no5", "kg"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("co\u00adoperate e\ufeffx", ["cooperate", "ex"]),
        ("zero\u200bwidth", ["zero", "width"]),
        ("C++ & 👩\u200d💻 5€", ["c", "5"]),
        ("lone \ud800 surrogate", ["lone", "surrogate"]),
    ],
)
def test_scripts(text, expected):
    assert tokenize(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C++ C# R&D 5% @me", ["c", "+", "+", "c", "#", "r", "&", "d", "5", "%", "@", "me"]),
        ("5€ ≥ 3£", ["5", "€", "≥", "3", "£"]),
        ("≠ =\u0338", ["≠", "≠"]),
        ("＋５％", ["+", "5", "%"]),
        ("👩\u200d💻❤️", ["👩", "💻", "❤"]),
        ("฿5", ["฿", "5"]),
        ("a.b, (c)", ["a", "b", "c"]),
        ("漢字+仮名", ["漢字", "+", "仮名"]),
    ],
)
def test_symbols_are_tokens_where_asked_for(text, expected):
    assert tokenize(text, symbols=True) == expected


@given(st.text())
def test_how_accents_are_written_makes_no_difference(text):
    expected = tokenize(text)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert tokenize(unicodedata.normalize(form, text)) == expected
    assert tokenize("Émigré") == tokenize("E\u0301migre\u0301") == ["émigré"]


@given(st.text())
def test_tokenizing_a_token_returns_it(text):
    """A token, read again, is itself: so a vocabulary of tokens can be looked up by text."""
    for token in tokenize(text):
        assert tokenize(token) == [token]


def test_a_long_text_takes_linear_time():
    for piece in ("word, ", "wörd – ", "हिन्दी। ", "\u0301", "ก" + "็" * 9, "　"):
        text = piece * (10_000_000 // len(piece.encode()))
        start = time.perf_counter()
        tokenize(text)
        assert time.perf_counter() - start < 20


# Tf-idf

WORDS = st.sampled_from(["a", "b", "Apple", "pie", "été", "東京都", "x1", "!"])
TEXTS = st.lists(st.lists(WORDS, max_size=8).map(" ".join), min_size=1, max_size=8)


def grams(text, longest):
    tokens = tokenize(text)
    return [" ".join(tokens[i : i + n]) for n in range(1, longest + 1) for i in range(len(tokens) - n + 1)]


@given(TEXTS, TEXTS, st.integers(1, 3), st.booleans(), st.integers(1, 2))
def test_rows_are_those_of_scikit_learn(texts, others, ngrams, sublinear, min_count):
    theirs = TfidfVectorizer(analyzer=lambda text: grams(text, ngrams), min_df=min_count, sublinear_tf=sublinear)
    ours = TextSettings(ngrams=ngrams, sublinear=sublinear, min_count=min_count)
    try:
        theirs.fit(texts)
    except ValueError:  # an empty vocabulary
        problem = "lower min_count" if any(map(tokenize, texts)) else "has a word; check the text columns"
        with pytest.raises(DataError, match=problem):
            TextFeatures.fit(texts, settings=ours)
        return
    features = TextFeatures.fit(texts, settings=ours)
    assert set(features.terms) == set(theirs.get_feature_names_out())
    columns = [theirs.vocabulary_[term] for term in features.terms]
    for some in (texts, others):
        rows = features.transform(some)
        assert rows.dtype == np.float32
        assert rows.has_canonical_format
        np.testing.assert_allclose(rows.toarray(), theirs.transform(some).toarray()[:, columns], atol=1e-6)


@given(TEXTS, TEXTS)
def test_documents_and_labels_are_counted_together(documents, labels):
    together = TextFeatures.fit([*documents, *labels, "one more"], settings=TextSettings(min_count=1))
    apart = TextFeatures.fit(documents, [*labels, "one more"], TextSettings(min_count=1))
    assert apart.terms == together.terms
    np.testing.assert_array_equal(apart.idf, together.idf)


def test_a_row_worked_by_hand():
    features = TextFeatures.fit(["red red apple", "green apple", ""], ["apple"], TextSettings(min_count=1))
    assert features.terms == ["apple", "green", "red"]
    apple, red = 1 + math.log(5 / 4), 1 + math.log(5 / 2)
    np.testing.assert_allclose(features.idf, [apple, red, red], rtol=1e-6)
    row = np.array([apple, 0, (1 + math.log(3)) * red])
    np.testing.assert_allclose(
        features.transform(["Red red RED apple pear"]).toarray()[0], row / np.sqrt(row @ row), 1e-6
    )
    np.testing.assert_array_equal(features.count(["red Red apple"]).toarray(), [[1, 0, 2]])


@given(TEXTS)
def test_rows_have_length_one_or_are_empty(texts):
    features = TextFeatures.fit(["a b apple pie"], settings=TextSettings(min_count=1))
    rows = features.transform([*texts, "unseen words", ""])
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    filled = np.diff(rows.indptr) > 0
    np.testing.assert_allclose(lengths[filled], 1, atol=1e-6)
    assert not filled[-2:].any()
    assert rows.shape == (len(texts) + 2, 4)


def test_the_most_frequent_terms_are_kept_and_ties_go_by_the_alphabet():
    texts = ["b a", "b a", "c b", "c", "d"]
    assert TextFeatures.fit(texts, settings=TextSettings(max_features=2)).terms == ["b", "a"]
    assert TextFeatures.fit(texts).terms == ["b", "a", "c"]
    assert TextFeatures.fit(texts, settings=TextSettings(min_count=1, max_features=9)).terms == ["b", "a", "c", "d"]


def two_fields(weights, **more):
    texts = {"title": ["apple pie", "pie"], "content": ["pie pie crust", "crust sugar"]}
    return texts, TextFeatures.fit(texts, settings=TextSettings(min_count=1, field_weights=weights, **more))


def test_field_weights_worked_by_hand():
    texts, features = two_fields({"title": 3, "content": 0.5})
    assert features.terms == ["crust", "pie", "apple", "sugar"]
    np.testing.assert_array_equal(features.count(texts).toarray(), [[0.5, 4, 3, 0], [0.5, 3, 0, 0.5]])


def test_titles_weigh_three_times_as_much_by_default():
    texts, features = two_fields(None)
    np.testing.assert_array_equal(features.count(texts).toarray(), two_fields({"title": 3})[1].count(texts).toarray())
    plain = {"name": texts["title"], "content": texts["content"]}
    made = TextFeatures.fit(plain, settings=TextSettings(min_count=1))
    np.testing.assert_array_equal(made.count(plain).toarray(), two_fields({})[1].count(texts).toarray())


@given(TEXTS, TEXTS, st.booleans())
def test_fields_of_weight_one_are_one_text(titles, contents, sublinear):
    size = min(len(titles), len(contents))
    texts = {"title": [*titles[:size], "pie"], "content": [*contents[:size], "a"]}
    joined = [" . ".join(row) for row in zip(*texts.values(), strict=True)]
    settings = TextSettings(min_count=1, sublinear=sublinear, field_weights={})
    one, two = TextFeatures.fit(joined, settings=settings), TextFeatures.fit(texts, settings=settings)
    assert one.terms == two.terms
    np.testing.assert_array_equal(one.idf, two.idf)
    np.testing.assert_array_equal(one.transform(joined).toarray(), two.transform(texts).toarray())


def test_a_field_of_weight_zero_is_not_there():
    texts, features = two_fields({"content": 0})
    assert features.terms == ["pie", "apple"]
    assert features.count(texts).nnz == 3
    titles = TextFeatures.fit(texts["title"], settings=TextSettings(min_count=1))
    np.testing.assert_array_equal(features.transform(texts).toarray(), titles.transform(texts["title"]).toarray())
    with pytest.raises(ConfigError, match="title, content all have weight 0"):
        two_fields({"title": 0, "content": 0})


def test_a_field_alone_is_not_weighed():
    """Label texts often have a title only; a weight of the documents' titles must not change, or empty, them."""
    texts, features = two_fields({"title": 0})
    _, plain = two_fields({})
    labels = {"title": ["pie pie crust"]}
    assert features.count(labels).nnz == 2
    np.testing.assert_array_equal(two_fields({"title": 5})[1].count(labels).toarray(), plain.count(labels).toarray())
    made = TextFeatures.fit(texts, labels, TextSettings(min_count=1, field_weights={"title": 0}))
    assert made.terms == ["crust", "pie", "sugar"]


@pytest.mark.parametrize("sublinear", [False, True])
def test_a_larger_weight_means_more(sublinear):
    """Also below 1, and across it, with sublinear counts, which have no gap there."""
    ratios = []
    for weight in (0.01, 0.1, 0.5, 0.99, 1.0, 1.01, 2.0, 50.0):
        _, features = two_fields({"title": weight}, sublinear=sublinear)
        row = features.transform({"title": ["apple"], "content": ["sugar"]}).toarray()[0]
        ratios.append(row[features.terms.index("apple")] / row[features.terms.index("sugar")])
    assert all(np.diff(ratios) > 0)
    assert ratios[4] == pytest.approx(1, abs=1e-6)
    assert ratios[5] - ratios[3] < 0.03


def test_a_weight_of_an_unknown_field_is_refused():
    with pytest.raises(ConfigError, match="field_weights names 'titel'; the text fields are title, content"):
        two_fields({"titel": 2})
    labels = {"description": ["sweet"]}
    made = TextFeatures.fit(["pie"], labels, TextSettings(min_count=1, field_weights={"description": 2}))
    assert made.terms == ["pie", "sweet"]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ("one text", "expected a list of texts; found a single text"),
        (["a", None], "row 1 must be text; found NoneType"),
        ({"title": ["a"], "content": [b"a"]}, "row 0 of 'content' must be text; found bytes"),
        ({"title": ["a"], "content": []}, "text fields differ in length: 0 of 'content', 1 of 'title'"),
    ],
)
def test_what_is_not_a_list_of_texts_is_refused(texts, problem):
    features = TextFeatures.fit(["a"], settings=TextSettings(min_count=1))
    for use in (features.transform, lambda texts: TextFeatures.fit(texts, settings=TextSettings(min_count=1))):
        with pytest.raises(DataError) as caught:
            use(texts)
        assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([], "none of 0 terms is in 2 of 0 texts; lower min_count"),
        (["", "-"], "none of the 2 texts has a word; check the text columns"),
        (["a", "b"], "none of 2 terms is in 2 of 2 texts; lower min_count"),
    ],
)
def test_nothing_to_learn_from_is_an_error(texts, problem):
    with pytest.raises(DataError) as caught:
        TextFeatures.fit(texts)
    assert str(caught.value) == problem


def test_no_texts_are_no_rows():
    features = TextFeatures.fit(["a"], settings=TextSettings(min_count=1))
    for nothing in ([], {"title": []}, {"title": [], "content": []}):
        assert features.transform(nothing).shape == (0, 1)


# Saved


@given(TEXTS, TEXTS, st.integers(1, 2), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_is_loaded_makes_equal_rows(tmp_path_factory, texts, others, ngrams, symbols):
    path = tmp_path_factory.mktemp("vocabulary") / "features.json"
    wanted = TextSettings(ngrams=ngrams, symbols=symbols, min_count=1, field_weights={"text": 0.3})
    features = TextFeatures.fit([*texts, "Größe € 東京"], settings=wanted)
    features.save(path)
    again = TextFeatures.load(path)
    assert (again.settings, again.terms) == (features.settings, features.terms)
    np.testing.assert_array_equal(again.idf, features.idf)
    for some in (texts, others):
        np.testing.assert_array_equal(again.transform(some).toarray(), features.transform(some).toarray())
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {"settings", "terms", "idf"}


GOOD = {"settings": {"ngrams": 2}, "terms": ["a", "b"], "idf": [1.0, 2.0]}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "null",
        '"terms"',
        *(json.dumps({key: value for key, value in GOOD.items() if key != left_out}) for left_out in GOOD),
        json.dumps(GOOD | {"terms": ["a", "a"]}),
        json.dumps(GOOD | {"terms": ["a"]}),
        json.dumps(GOOD | {"terms": ["a", 1]}),
        json.dumps(GOOD | {"terms": [["a"], ["b"]]}),
        json.dumps(GOOD | {"terms": 5}),
        json.dumps(GOOD | {"idf": [1.0, None]}),
        json.dumps(GOOD | {"idf": [[1.0, 2.0]]}),
        json.dumps(GOOD | {"idf": ["x", "y"]}),
        json.dumps(GOOD | {"settings": []}),
        json.dumps(GOOD | {"settings": {"ngram": 2}}),
        json.dumps(GOOD | {"settings": {"ngrams": "two"}}),
        json.dumps(GOOD | {"settings": {"ngrams": 0}}),
    ],
)
def test_what_is_not_a_saved_vocabulary_is_refused_with_its_file(tmp_path, content):
    path = tmp_path / "features.json"
    path.write_text(json.dumps(GOOD))
    assert TextFeatures.load(path).settings.ngrams == 2
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        TextFeatures.load(path)
    assert str(caught.value).startswith(f"{path}: not a saved vocabulary: ")


def test_a_vocabulary_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        TextFeatures.load(tmp_path / "features.json")
    with pytest.raises(DataError, match="cannot be written"):
        TextFeatures.fit(["a a"], ["a"]).save(tmp_path / "no" / "features.json")


# Data sets


def small(**more):
    return Dataset(
        train=Part(csr_array([[1, 0], [0, 1]]), texts={"title": ["red apple", "green apple"]}),
        test=Part(csr_array([[1, 1]]), texts={"title": ["apple testonly testonly"]}),
        validation=Part(csr_array([[0, 1]]), texts={"title": ["green valonly"]}),
        label_texts={"title": ["red things", "green things"]},
        **more,
    )


def test_only_train_and_labels_enter_the_vocabulary():
    made = featurized(small(), TextSettings(min_count=1))
    assert made.feature_names == ["apple", "green", "red", "things"]
    assert made.sizes.features == made.Z.shape[1] == 4
    expected = TextFeatures.fit(["red apple", "green apple", "red things", "green things"])
    np.testing.assert_array_equal(made.test.X.toarray(), expected.transform(["apple"]).toarray())
    np.testing.assert_array_equal(made.Z.toarray(), expected.transform(["red things", "green things"]).toarray())
    assert made.validation.X.nnz == 1


def test_features_that_are_there_stay():
    made = featurized(small(), TextSettings(min_count=1))
    assert featurized(made, TextSettings(ngrams=2)) is made
    numbers = Dataset(Part(csr_array([[1]]), X=csr_array([[2.0, 3.0]])))
    assert featurized(numbers) is numbers
    with pytest.raises(DataError, match="no texts"):
        TextFeatures.fit(["a a"], ["a"]).apply(numbers)
    with pytest.raises(DataError, match="no features"):
        Tfidf(np.ones(2, np.float32)).apply(small())


def test_numbers_are_weighted_as_worked_by_hand():
    X = csr_array([[2.0, 0, 1], [0, 0, 3], [0, 0, 0]])
    weigher = Tfidf.fit(X)
    rare, common = 1 + math.log(4 / 2), 1 + math.log(4 / 3)
    np.testing.assert_allclose(weigher.idf, [rare, 1 + math.log(4), common], rtol=1e-6)
    first = np.array([2 * rare, 0, common])
    expected = [first / np.sqrt(first @ first), [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(weigher.transform(X).toarray(), expected, rtol=1e-6)
    np.testing.assert_array_equal(X.toarray(), [[2, 0, 1], [0, 0, 3], [0, 0, 0]])  # and X is as it was
    with pytest.raises(DataError, match="rows have 2 features, but tf-idf was fitted on 3"):
        weigher.transform(csr_array([[1.0, 2.0]]))


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=25)
def test_numbers_are_weighted_as_by_scikit_learn(seed, sublinear):
    rng = np.random.default_rng(seed)
    X = csr_array(rng.integers(0, 4, (6, 5)) * (rng.random((6, 5)) < 0.5), dtype=np.float32)
    ours = Tfidf.fit(X, sublinear=sublinear).transform(X)
    theirs = TfidfTransformer(sublinear_tf=sublinear).fit_transform(X)
    np.testing.assert_allclose(ours.toarray(), theirs.toarray(), atol=1e-6)


def test_numbers_of_all_sizes_and_signs_give_rows_of_length_one():
    """A row of tiny numbers after one of huge numbers must not drown in it."""
    X = csr_array(np.array([[3e15, 4e15], [3e-15, -4e-15], [0, 0], [1e-30, 0], [-0.5, 2]], dtype=np.float32))
    for sublinear in (False, True):
        rows = Tfidf(np.ones(2, np.float32), sublinear).transform(X).toarray()
        np.testing.assert_allclose(np.sqrt((rows**2).sum(axis=1)), [1, 1, 0, 1, 1], rtol=1e-6)
        np.testing.assert_allclose(rows[1], [0.6, -0.8], rtol=1e-6)
        assert (np.sign(rows) == np.sign(X.toarray())).all()
    zeros = csr_array((np.zeros(2, np.float32), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    assert Tfidf(np.ones(2, np.float32)).transform(zeros).toarray().tolist() == [[0, 0]]


def test_weights_of_numbers_come_from_train():
    Y, Z = csr_array([[1], [1]]), csr_array([[0.0, 2.0]])
    dataset = Dataset(Part(Y, csr_array([[1.0, 1], [1, 0]])), Part(Y, csr_array([[3.0, 0], [0, 5]])), Z=Z)
    made = Tfidf.fit(dataset.train.X).apply(dataset)
    np.testing.assert_array_equal(made.test.X.toarray(), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(made.Z.toarray(), [[0, 1]])
    assert made.train.X.toarray()[0, 0] < made.train.X.toarray()[0, 1]
    counts = Tfidf.fit(dataset.train.X, Z).idf
    np.testing.assert_allclose(counts, 1 + np.log(4 / np.array([3, 3])), rtol=1e-6)


def test_pieces_of_words_are_features_and_have_places():
    features = TextFeatures.fit(["acid base", "acidic"], settings=TextSettings(min_count=2, characters=4))
    assert sorted(features.terms) == ["~<ac", "~<aci", "~aci", "~acid", "~cid"]
    rows = features.count(["acids", "Acid acid", "ac"]).toarray()
    assert rows.sum(axis=1).tolist() == [5, 10, 0]  # an unknown word is known by its pieces; a short one has none
    places = {features.terms[term]: spans for term, spans in features.places("an acid").items()}
    assert places["~<ac"] == [(3, 5)]
    assert places["~cid"] == [(4, 7)]
    assert places["~acid"] == [(3, 7)]
    loaded = TextFeatures.of_json(features.as_json())
    assert (loaded.transform(["acids"]) != features.transform(["acids"])).nnz == 0
