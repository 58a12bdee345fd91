"""``python -m fieldfare``: the command line."""

from fieldfare.cli import main

main()
