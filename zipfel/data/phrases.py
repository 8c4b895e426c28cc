"""Find names that look like a phrase: pieces of words, whatever their order, endings and punctuation.

Every name is a bag of the pieces of its words, 3 to 5 characters long and hashed, weighted by how rare they are. The
pieces of all names are made at once from one array of characters, so that a million names take seconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.tokens import tokenize

LENGTHS = (3, 4, 5)  # characters of a piece, with the blanks around its word
BITS = 20  # of a piece's hash
POSTINGS = 1_000_000  # names looked at for a phrase, rarest pieces first: bounds the time of a search
NAME_WORDS = 12  # longest name; a longer part of a label's text is a description
_PARTS = re.compile(r"\n| \| | :: ")  # between the names, synonyms and descriptions in a label's text
_BLANK, _END = ord(" "), ord("\n")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def names_of_label(name: str, text: str) -> list[str]:
    """Return the names of a label: its own, if it has letters, and the short parts of its text, as tokens.

    Parts are separated by newlines, ` | ` (synonyms) or ` :: ` (a description after a name).

    >>> names_of_label("D000006", "Abdomen, Acute | Acute Abdomen")
    ['d000006', 'abdomen acute', 'acute abdomen']
    """
    given = [name] if any(map(str.isalpha, name)) else []
    parts = [" ".join(tokenize(part)) for part in chain(given, _PARTS.split(text))]
    return [part for part in dict.fromkeys(parts) if part and part.count(" ") < NAME_WORDS]


def title_of(name: str, text: str) -> str:
    """Return the words that people know a label by: the first part of its text, else its name.

    >>> title_of("D000006", "Abdomen, Acute | Acute Abdomen"), title_of("printer", "")
    ('Abdomen, Acute', 'printer')
    """
    return next((part.strip() for part in _PARTS.split(text) if part.strip()), name)


class Match(NamedTuple):
    """A name that looks like a phrase: its label, its tokens, and the cosine of the two in [0, 1]."""

    label: int
    name: str
    cosine: float


@dataclass(frozen=True, eq=False)
class Phrases:
    """The names of labels, and which of them have each piece."""

    names: list[str]  # as tokens; those of a label follow each other
    owners: NDArray[np.int64]  # the label of each name
    labels: int  # their number, removed ones included
    idf: NDArray[np.float32]  # [pieces]
    postings: csr_array  # [pieces, names], cosines' summands

    @classmethod
    def of(cls, labels: Mapping[str, int], texts: Sequence[str]) -> Phrases:
        """Index the names and synonyms of labels.  labels: ids by name.  texts: by id."""
        rows = [(label, each) for name, label in labels.items() for each in names_of_label(name, texts[label])]
        names = [name for _, name in rows]
        rows_of, pieces = _pieces(names)
        counts = np.ones(len(pieces), dtype=np.float32)
        bags = csr_array((counts, (rows_of, pieces)), shape=(len(names), 1 << BITS))
        bags.sum_duplicates()
        frequency = np.bincount(bags.indices, minlength=1 << BITS)
        idf = np.log((1 + len(names)) / (1 + frequency)).astype(np.float32) + 1
        bags = _weighted(bags, idf)
        owners = np.array([label for label, _ in rows], dtype=np.int64)
        return cls(names, owners, len(texts), idf, csr_array(bags.T))

    def search(self, phrase: str, most: int) -> list[Match]:
        """Return up to `most` names that look most like a phrase, best first."""
        cosines = self._cosines(" ".join(tokenize(phrase)))
        best = _best(cosines, most)
        rows = zip(self.owners[best].tolist(), best.tolist(), cosines[best].tolist(), strict=True)
        return [Match(label, self.names[name], cosine) for label, name, cosine in rows]

    @cached_property
    def _word_counts(self) -> Counter[str]:
        return Counter(word for name in self.names for word in set(name.split()))

    def rarity(self, word: str) -> float:
        """Return how rare a word is among all names: 1 + ln((1 + n) / (1 + n_word))."""
        return 1 + math.log((1 + len(self.names)) / (1 + self._word_counts.get(word, 0)))

    @cached_property
    def _by_stem(self) -> tuple[dict[str, int], csr_array]:
        """Numbers of stems, and the share of each name that a stem is, weighted by rarity, [stems, names]."""
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(stem, len(numbers)) for stem in {*_stems(name.split())}] for name in self.names]
        names = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        stems = np.array([stem for row in rows for stem in row], dtype=np.int64)
        rarity = 1 + np.log((1 + len(rows)) / (1 + np.bincount(stems, minlength=len(numbers))))
        totals = np.bincount(names, rarity[stems], minlength=len(rows))
        shares = (rarity[stems] / totals[names]).astype(np.float32)
        return numbers, csr_array((shares, (stems, names)), shape=(len(numbers), len(rows)))

    def coverage(self, text: str) -> NDArray[np.float32]:
        """Return for each label the largest share of a name whose words a text has, weighted by rarity, [labels].

        Words count in singular and plural; their order does not matter. Labels without a name have 0.
        """
        numbers, shares = self._by_stem
        stems = np.array([numbers[stem] for stem in {*_stems(tokenize(text))} if stem in numbers], dtype=np.int64)
        covered = self._summed(shares, stems, np.ones(len(stems), dtype=np.float32))
        best = np.zeros(self.labels, dtype=np.float32)
        if len(self.names):
            first = np.flatnonzero(np.diff(self.owners, prepend=-1))
            best[self.owners[first]] = np.maximum.reduceat(covered, first)
        return best

    def _cosines(self, words: str) -> NDArray[np.float32]:
        """Return the cosine of each name with a phrase of tokens, [names]."""
        _, pieces = _pieces([words])
        query = csr_array((np.ones(len(pieces), np.float32), (np.zeros(len(pieces), int), pieces)), (1, 1 << BITS))
        query.sum_duplicates()
        query = _weighted(query, self.idf)
        return self._summed(self.postings, query.indices, query.data)

    def _summed(
        self, postings: csr_array, rows: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the weighted sum of some rows of `postings` [rows, names], the shortest ones up to POSTINGS cells."""
        starts, ends = postings.indptr[rows], postings.indptr[rows + 1]
        shortest = np.argsort(ends - starts, kind="stable")
        kept = shortest[np.cumsum((ends - starts)[shortest]) <= POSTINGS]
        names = [postings.indices[starts[row] : ends[row]] for row in kept]
        values = [postings.data[starts[row] : ends[row]] * weights[row] for row in kept]
        if not names:
            return np.zeros(len(self.names), dtype=np.float32)
        sums = np.bincount(np.concatenate(names), np.concatenate(values), minlength=len(self.names))
        return np.minimum(sums, 1).astype(np.float32)


def _stems(words: Sequence[str]) -> tuple[str, ...]:
    """Return words without a plural's s, so that a text names a label in singular or plural."""
    return tuple(word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word for word in words)


def _best(values: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """Return where the largest positive values are, best first."""
    found = np.flatnonzero(values > 0)
    if len(found) > most:
        found = found[np.argpartition(-values[found], most - 1)[:most]]
    return found[np.lexsort((found, -values[found]))]


def _weighted(bags: csr_array, idf: NDArray[np.float32]) -> csr_array:
    """Return bags weighted by idf, rows of unit length."""
    values = (1 + np.log(bags.data)) * idf[bags.indices]
    rows = np.repeat(np.arange(bags.shape[0]), np.diff(bags.indptr))
    lengths = np.sqrt(np.bincount(rows, values**2, minlength=bags.shape[0])).astype(np.float32)
    return csr_array((values / lengths[rows], bags.indices, bags.indptr), shape=bags.shape)


def _pieces(names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of all names: the number of the name, and the hash of the piece, [pieces] each."""
    text = "".join(f" {name} \n" for name in names)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    owner = np.cumsum(codes == _END) - (codes == _END)
    found = [_of_length(codes, owner, length) for length in LENGTHS]
    return np.concatenate([rows for rows, _ in found]), np.concatenate([hashes for _, hashes in found])


def _of_length(
    codes: NDArray[np.uint32], owner: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of one length; a blank may only be a piece's first or last character."""
    count = len(codes) - length + 1
    if count <= 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    valid = np.ones(count, dtype=bool)
    hashed = np.full(count, length, dtype=np.uint64)
    for place in range(length):
        here = codes[place : place + count]
        valid &= here != _END
        if 0 < place < length - 1:
            valid &= here != _BLANK
        hashed = (hashed ^ here) * _FACTOR
        hashed ^= hashed >> np.uint64(29)
    return owner[:count][valid], (hashed[valid] >> np.uint64(64 - BITS)).astype(np.int64)
