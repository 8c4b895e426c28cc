"""Settings of Sphinx for the documentation site; `make docs` builds it from a copy of this folder."""

import dataclasses

from pygments.lexers.shell import BashLexer
from pygments.lexers.special import TextLexer

from zipfel import __version__
from zipfel.config import Settings

project, author, release = "zipfel", "The zipfel maintainers", __version__
copyright = "the zipfel maintainers, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["files"]
default_role = "literal"
language = "en"

myst_heading_anchors = 4
myst_enable_extensions = ["smartquotes"]
suppress_warnings = ["myst.strikethrough"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = "zipfel"
html_static_path = ["static"]
html_logo = html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"
pygments_style, pygments_dark_style = "github-light", "github-dark"


def setup(app):
    """Name lexers, describe settings, and leave out methods that scikit-learn adds to every estimator."""
    app.add_lexer("csv", TextLexer)
    app.add_lexer("console", BashLexer)  # commands only, without prompts and output
    app.connect("autodoc-skip-member", skipped)
    app.connect("autodoc-process-docstring", with_settings)


def skipped(app, what, name, obj, skip, options):
    """Return whether scikit-learn has made this method."""
    return True if name.endswith("_request") or name == "get_metadata_routing" else None


def with_settings(app, what, name, obj, options, lines):
    """Add the meaning of each setting to the docstring of a class of settings, which does not repeat it."""
    if what == "class" and issubclass(obj, Settings):
        named = [f":param {field.name}: {field.metadata['help']}" for field in dataclasses.fields(obj)]
        lines[:] = [*lines[:1], "", *named, "", *lines[1:]]
