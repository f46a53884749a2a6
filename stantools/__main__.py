"""Runs the command line: `python -m stantools`."""

from stantools.cli.main import main

if __name__ == "__main__":
    main()
