"""The command line, for the tests of `stantools diff`."""

from tests.cli.conftest import run

__all__ = ["run"]
