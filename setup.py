"""Builds the optional compiled kernels; everything else is in pyproject.toml.

Without a C compiler the extension is skipped and the plain kernels are used.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                "stantools.format._native",
                ["stantools/format/_native.pyx"],
                extra_compile_args=["-O3"],
                optional=True,
            )
        ],
        language_level=3,
    )
)
