"""Cut text into tokens: case-folded runs of letters, marks and digits of any script.

Only characters that need a decision are handled one by one, which makes this fast: a regular expression finds them,
other letters pass unchanged, and a table of bytes decides on ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

# Scripts written without blanks between words: Thai, Lao, Myanmar, Khmer, kana, Han. Their runs are cut into
# overlapping pairs of letters (each with its marks), which need no dictionary and carry most of the words' meaning.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\s{_UNSPACED}]+")
_PAIR = re.compile(r"(?=(\w\W*\w\W*))")  # a lookahead, so that the next pair can start with the second letter

_LONE_ACCENT = re.compile(" [\u0300-\u036f\u3099\u309a]+")  # NFKC makes this of ´ and ¨, often typed as apostrophes
_VARIATION_SELECTORS = frozenset([0x34F, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
_SYMBOLIC_PUNCTUATION = "#%&@"  # marks with a meaning of their own: C#, 5 %, R&D, @name


def tokenize(text: str, symbols: bool = False) -> list[str]:
    """Return the tokens of a text. symbols: make each symbol a token; otherwise symbols only separate words.

    >>> tokenize("Größe: 5% of C++ हिन्दी 東京都", symbols=True)
    ['grösse', '5', '%', 'of', 'c', '+', '+', 'हिन्दी', '東京', '京都']
    """
    rules = _rules(symbols)
    if not text.isascii():
        text = _LONE_ACCENT.sub(" ", unicodedata.normalize("NFKC", text))
        text = unicodedata.normalize("NFKC", text.casefold())
    if symbols or not text.isascii():
        text = rules.special.sub(rules.replaced, text)
    return text.encode().translate(rules.ascii).decode().split()


class Located(NamedTuple):
    """A token, and the characters [start, end) of the text that it comes from."""

    token: str
    start: int
    end: int


def located(text: str, symbols: bool = False) -> list[Located]:
    """Return the same tokens as `tokenize`, each with its position in the text.

    >>> located("½ Größe")
    [Located(token='1', start=0, end=1), Located(token='2', start=0, end=1), Located(token='grösse', start=2, end=7)]
    """
    first = [index for index, character in enumerate(text) if index == 0 or not _joins(character)]
    last = [*first[1:], len(text)] if text else []
    pieces = [_folded(text[start:end], symbols) for start, end in zip(first, last, strict=True)]
    owners = [number for number, piece in enumerate(pieces) for _ in piece]  # the piece of each folded character
    return [Located(token, first[owners[start]], last[owners[end - 1]]) for token, start, end in _cut("".join(pieces))]


@cache
def _joins(character: str) -> bool:
    """Whether normalization may join a character with the one before it: marks, and parts of Hangul syllables."""
    if character.isascii():
        return False
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


@lru_cache(1 << 16)
def _folded(piece: str, symbols: bool) -> str:
    """Return the folded form of a character and the marks after it, with blanks where words end."""
    piece = _LONE_ACCENT.sub(" ", unicodedata.normalize("NFKC", piece))
    return unicodedata.normalize("NFKC", piece.casefold()).translate(_rules(symbols))


def _cut(content: str) -> Iterator[tuple[str, int, int]]:
    """Yield (token, start, end): words, and pairs of letters of unspaced scripts."""
    for word in _WORD.finditer(content):
        pairs = list(_PAIR.finditer(word[0])) if _UNSPACED_RUN.match(word[0]) else []
        for pair in pairs:
            yield pair[1], word.start() + pair.start(1), word.start() + pair.end(1)
        if not pairs:
            yield word[0], word.start(), word.end()


class _Rules(dict[int, str]):
    """The replacement of each character, for str.translate; filled on demand."""

    def __init__(self, symbols: bool) -> None:
        super().__init__()
        self._symbols = symbols
        self._single: dict[str, str] = {}
        kept = [_kept(chr(code), symbols).strip() or " " for code in range(128)]
        self.ascii = "".join(kept).lower().encode() + bytes(range(128, 256))

    def __missing__(self, code: int) -> str:
        """Decide on a new character."""
        self[code] = _kept(chr(code), self._symbols)
        return self[code]

    @cached_property
    def special(self) -> re.Pattern[str]:
        """Matches runs of characters that change or belong to an unspaced script, except separators in ASCII."""
        kept = ((code, _kept(chr(code), self._symbols)) for code in range(0x10000))
        changed = (code for code, kept in kept if kept != chr(code) and (kept != " " or code > 127))
        # Includes all characters beyond the first plane, because Python's lookup in a set is fast for that plane only.
        # `[set][set]*` takes half the time of `[set]+`.
        special = f"[{_ranges(changed)}{_UNSPACED}\U00010000-\U0010ffff]"
        return re.compile(f"{special}{special}*")

    def replaced(self, match: re.Match[str]) -> str:
        """Return the replacement of a run of special characters; those of single ones, such as ’, are cached."""
        run = match[0]
        replacement = self._single.get(run)
        if replacement is None:
            replacement = _UNSPACED_RUN.sub(_pairs, run.translate(self))
            if len(run) == 1:
                self._single[run] = replacement
        return replacement


_rules = cache(_Rules)


def _kept(character: str, symbols: bool) -> str:
    """Return the replacement of a character, by its Unicode category."""
    kind = unicodedata.category(character)
    if character == "\u200b":  # zero width space, which marks the end of a word
        return " "
    if kind == "Cf" or ord(character) in _VARIATION_SELECTORS:  # invisible, such as joiners and soft hyphens
        return ""
    if kind[0] in "LMN":
        return character
    return f" {character} " if symbols and (kind[0] == "S" or character in _SYMBOLIC_PUNCTUATION) else " "


def _ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as the inside of a character set in a regular expression."""
    runs = (list(run) for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0]))
    return "".join(f"\\u{run[0][1]:04x}-\\u{run[-1][1]:04x}" for run in runs)


def _pairs(run: re.Match[str]) -> str:
    return f" {' '.join(_PAIR.findall(run[0])) or run[0]} "
