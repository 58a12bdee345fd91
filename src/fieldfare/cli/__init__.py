"""The command line: ``fieldfare``."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process; the entry point of ``fieldfare``."""
    from fieldfare.cli.app import app

    app(prog_name="fieldfare")
