"""The command line, for the tests of `stantools replay`."""

from tests.cli.conftest import run

__all__ = ["run"]
