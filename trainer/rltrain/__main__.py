"""`python -m rltrain`."""

from rltrain.cli.app import main

if __name__ == "__main__":
    main()
