"""`python -m distrun`: the launcher, for checkouts where the `distrun` command is not installed."""

from distrun.cli import main

if __name__ == "__main__":
    main()
