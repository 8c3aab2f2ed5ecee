"""`python -m distrun.runner`: the launcher, for checkouts where the `distrun` command is not installed."""

from distrun.runner.cli import main

if __name__ == "__main__":
    main()
