"""`python -m trainctl`: the same as the console script."""

from trainctl.cli.app import main

main()
