"""`python -m distrun.runner`, as `python -m distrun`."""

from distrun.cli import main

if __name__ == "__main__":
    main()
