"""Text to tokens: runs of letters, marks and digits of any script, without regard to case.

Fast by this: only characters that need a decision are looked at one by one. Those are found by a regular expression;
letters pass, and what is ASCII is decided by a table of bytes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import groupby

# Scripts that are written without blanks between words: Thai, Lao, Myanmar, Khmer, kana, Han. Their runs are cut into
# overlapping pairs of letters (each with its marks), which need no dictionary and carry most of what words would.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_PAIR = re.compile(r"(?=(\w\W*\w\W*))")  # ahead only, so that the next pair may begin with this one's second letter

_LONE_ACCENT = re.compile(" [\u0300-\u036f\u3099\u309a]+")  # what NFKC makes of ´ and ¨, often typed for apostrophes
_VARIATION_SELECTORS = frozenset([0x34F, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
_SYMBOLIC_PUNCTUATION = "#%&@"  # the marks that mean something by themselves: C#, 5 %, R&D, @name


def tokenize(text: str, symbols: bool = False) -> list[str]:
    """Cut a text into tokens; symbols are tokens of one character, or separate words like all else.

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


@cache
def _rules(symbols: bool) -> _Rules:
    return _Rules(symbols)


class _Rules(dict[int, str]):
    """What becomes of each character, for str.translate; filled as characters are met."""

    def __init__(self, symbols: bool) -> None:
        super().__init__()
        self._symbols = symbols
        self._alone: dict[str, str] = {}
        kept = [_kept(chr(code), symbols).strip() or " " for code in range(128)]
        self.ascii = "".join(kept).lower().encode() + bytes(range(128, 256))

    def __missing__(self, code: int) -> str:
        """Decide on one character."""
        self[code] = _kept(chr(code), self._symbols)
        return self[code]

    @cached_property
    def special(self) -> re.Pattern[str]:
        """Runs of characters that do not just stay, or that belong to an unspaced script; not ASCII's separators."""
        kept = ((code, _kept(chr(code), self._symbols)) for code in range(0x10000))
        changed = (code for code, kept in kept if kept != chr(code) and (kept != " " or code > 127))
        # All beyond the first plane too, as Python looks a character up fast in a set of that plane only; and it
        # finds `[set][set]*` in half the time of `[set]+`.
        special = f"[{_ranges(changed)}{_UNSPACED}\U00010000-\U0010ffff]"
        return re.compile(f"{special}{special}*")

    def replaced(self, match: re.Match[str]) -> str:
        """Return what stands for a run of special characters; single ones, such as ’, are remembered."""
        run = match[0]
        found = self._alone.get(run)
        if found is None:
            found = _UNSPACED_RUN.sub(_pairs, run.translate(self))
            if len(run) == 1:
                self._alone[run] = found
        return found


def _kept(character: str, symbols: bool) -> str:
    """Return what becomes of a character, by its Unicode category."""
    kind = unicodedata.category(character)
    if character == "\u200b":  # zero width space, which marks where a word ends
        return " "
    if kind == "Cf" or ord(character) in _VARIATION_SELECTORS:  # invisible, such as joiners and soft hyphens
        return ""
    if kind[0] in "LMN":
        return character
    return f" {character} " if symbols and (kind[0] == "S" or character in _SYMBOLIC_PUNCTUATION) else " "


def _ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as the inside of a regular expression's set."""
    runs = (list(run) for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0]))
    return "".join(f"\\u{run[0][1]:04x}-\\u{run[-1][1]:04x}" for run in runs)


def _pairs(run: re.Match[str]) -> str:
    return f" {' '.join(_PAIR.findall(run[0])) or run[0]} "
