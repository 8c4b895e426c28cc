"""`python -m zipfel` is the `zipfel` command."""

from zipfel.cli.main import main

main()
