"""The command line: ``fieldfare``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process; the entry point of ``fieldfare``."""
    from fieldfare.cli.streams import finish_output, read_arguments, speak_any_encoding, use_utf8

    use_utf8()
    read_arguments()
    speak_any_encoding()
    try:
        from fieldfare.cli.app import app

        app(prog_name="fieldfare")
    except KeyboardInterrupt:  # Before or after the command itself ran.
        sys.exit(130)
    finally:
        finish_output()
