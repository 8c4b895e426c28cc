"""Long documents: a manual page, labelled with the pages that its section SEE ALSO names.

A point is a page of one of many Debian packages: the section NAME as title, all others as content, but for SEE ALSO.
Labels are pages such as `open(2)`; other names of a page are the page itself. A label's text is its section NAME, for
pages of these packages. Pages that are labels themselves get filter pairs.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, debian

# fmt: off
PACKAGES = (
    "allegro4-doc", "coreutils", "devscripts", "docker.io", "erlang-manpages", "freebsd-manpages", "git-man",
    "grass-doc", "inn2", "iproute2", "libarchive-dev", "libbsd-dev", "libcurl4-doc", "libgetdata-doc",
    "libibverbs-dev", "libldap-dev", "libpcap0.8-dev", "libpcp3-dev", "librdmacm-dev", "libssl-doc", "libx11-doc",
    "libxcb-doc", "lvm2", "lxc", "manpages", "manpages-dev", "ncurses-doc", "netpbm", "nmh", "pcp", "perl-doc",
    "podman", "postfix", "slapd", "systemd", "tcl8.6-doc", "tcllib", "texlive-binaries", "tk8.6-doc", "util-linux",
)
# fmt: on

_SECTION = re.compile(r"^\.S[Hh] *(.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"([A-Za-z0-9_][\w.:+-]*) ?\(([1-9n][a-zA-Z]*)\)")
_MDOC_REFERENCE = re.compile(r"^\.Xr (\S+) (\w+)", re.MULTILINE)
_DEFINITION = re.compile(r"^\.(?:de|ig).*?^\.\.$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r'^[.\']?\\".*$|\\".*$|^\.IX .*$', re.MULTILINE)  # .IX is an entry of an index
_REQUEST = re.compile(r"^[.'][ \t]*\w*", re.MULTILINE)
_FONT = re.compile(r"\\f(?:\[[^]]*\]|\(..|.)|\\s[+-]?\d|\\[&|^/,:]|\\m\[[^]]*\]")
_SPECIAL = re.compile(r"\\(?:\(..|\[[^]]*\]|\*\(..|\*.)")


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the packages, and parse their English pages."""
    packages = debian(PACKAGES, folder)
    pages: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for package in packages:
        for path in sorted(package.folder.glob("usr/share/man/man*/*.gz")):
            uid = uid_of(path.name)
            if path.is_symlink():
                aliases[uid] = uid_of(Path(path.readlink()).name)
            else:
                pages.setdefault(uid, gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
    return parse(pages, aliases), packages


def uid_of(file: str) -> str:
    """Return the name of a page, with a section of one character.

    >>> uid_of("BIO_new.3ssl.gz")
    'BIO_new(3)'
    """
    name, _, section = file.removesuffix(".gz").rpartition(".")
    return f"{name}({section[:1]})"


def parse(pages: Mapping[str, str], aliases: Mapping[str, str]) -> Corpus:
    """Parse the source of pages by name; a page `.so man2/open.2` is another name of open(2)."""
    known = dict(aliases)
    for uid, source in pages.items():
        if source.startswith(".so "):
            known[uid] = uid_of(Path(source.split()[1]).name)
    points, titles = [], {}
    for uid, source in pages.items():
        sections = sections_of(source)
        title = plain(sections.pop("NAME", ""))
        labels = {known.get(label, label) for label in references(sections.pop("SEE ALSO", ""))} - {uid}
        content = plain("\n".join(f"{name}\n{text}" for name, text in sections.items()))
        titles[uid] = title or uid
        if labels and title:
            points.append(Point(uid, title, content, frozenset(labels)))
    return Corpus(points, titles)


def sections_of(source: str) -> dict[str, str]:
    """Return the source of the sections by title, from NAME on."""
    _, *pieces = _SECTION.split(_COMMENT.sub("", _DEFINITION.sub("", source)))
    titles = [title.strip().strip('"').upper() for title in pieces[::2]]
    return dict(zip(titles, pieces[1::2], strict=True))


def references(source: str) -> list[str]:
    r"""Return the pages that a section names, in the forms of man(7) and mdoc(7).

    >>> references(".BR open (2),\n\\fBpoll\\fR(2)"), references(".Xr mmap 2 ,")
    (['open(2)', 'poll(2)'], ['mmap(2)'])
    """
    found = _MDOC_REFERENCE.findall(source) or _REFERENCE.findall(plain(source))
    return [f"{name}({section[:1]})" for name, section in found]


def plain(source: str) -> str:
    r"""Return the text of roff source, without requests and escapes.

    >>> plain(".B open\nreturns \\-1 and sets \\fIerrno\\fP\\(em")
    'open returns -1 and sets errno'
    """
    text = _REQUEST.sub("", source)
    text = _SPECIAL.sub(" ", _FONT.sub("", text)).replace("\\-", "-").replace("\\", "").replace('"', "")
    return " ".join(text.split())
