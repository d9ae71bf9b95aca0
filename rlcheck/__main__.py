"""`python -m rlcheck` is the same command as `rlcheck`."""

from rlcheck.cli.app import main

if __name__ == "__main__":
    main()
