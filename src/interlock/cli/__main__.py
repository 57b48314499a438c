"""`python -m interlock.cli` is the `interlock` command."""

from interlock.cli import main

main()
