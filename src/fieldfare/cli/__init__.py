"""The command line: ``fieldfare``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process; the entry point of ``fieldfare``."""
    from fieldfare.cli.streams import finish_output, read_arguments, speak_any_encoding

    read_arguments()
    speak_any_encoding()
    try:
        from fieldfare.cli.app import app

        app(prog_name="fieldfare")
    except KeyboardInterrupt:  # so early, or so late, that no command had a word in it
        sys.exit(130)
    finally:
        finish_output()
