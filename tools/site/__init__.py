"""Build the documentation site: Markdown of the repository, and reference pages out of the code."""
