"""The `zipfel` command, also as `python -m zipfel`."""

import os
import sys


def main() -> None:
    """Run the command line, which takes longer to import than Python to start: a service can get signals meanwhile."""
    if sys.argv[1:2] == ["serve"] and os.name == "posix":
        from zipfel.server.signals import hold_signals

        hold_signals()
    from zipfel.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
