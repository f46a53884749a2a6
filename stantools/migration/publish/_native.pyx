# cython: language_level=3
"""Placeholder until the kernels are written."""

NAME = "native"
