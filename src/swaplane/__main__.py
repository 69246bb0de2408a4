"""`python -m swaplane`: the same as the `swaplane` command."""

from swaplane.cli import main

main()
