"""`python -m bkpy` is the `bkpy` command."""

from bkpy.cli import main

main()
