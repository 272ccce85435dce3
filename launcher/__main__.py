"""`python -m launcher`: the same as the `sparkctl` command."""

from launcher.cli.app import main

main()
