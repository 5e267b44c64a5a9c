"""`python -m warmstore` is the `warmstore` command."""

from warmstore.cli import main

main()
