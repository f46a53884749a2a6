"""`python -m broker`: the same as `stan-broker`."""

from broker.cli import console

console()
