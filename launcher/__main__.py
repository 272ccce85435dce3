"""`python -m launcher`: the same as the `sparkctl` command."""

from launcher.cli.start import main

main()
