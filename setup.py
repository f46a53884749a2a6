"""Builds the optional compiled kernels and names the packages; everything else is in pyproject.toml.

Without a C compiler the extension is skipped and the plain kernels are used.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup

MODULES = [
    "broker.stores.streams._native",
    "broker.streaming.hot._native",
    "stantools.format._native",
    "stantools.streamfiles._native",
    "stantools.migration.proof._native",
    "stantools.nats._native",
    "stantools.nats.publishing._native",
    "stantools.store._native",
    "stantools.store.folding._native",
]

extensions = cythonize(
    [Extension(name, [f"{name.replace('.', '/')}.pyx"], extra_compile_args=["-O3", "-g0"]) for name in MODULES],
    language_level=3,
    quiet=True,
)
for extension in extensions:
    extension.optional = True  # cythonize does not take it over from what it is given

#: Packages whose names Spark looks for; in the source they are where they belong.
ENTRY = "stantools/pipeline/spark/entry"
FORMATS = ["pyspark_jetstream", "pyspark_stan"]

setup(
    ext_modules=extensions,
    packages=[
        *find_namespace_packages(
            include=["stantools*", "broker*", "tui*"], exclude=["stantools.egg-info", f"{ENTRY.replace('/', '.')}*"]
        ),
        *FORMATS,
    ],
    package_dir={name: f"{ENTRY}/{name}" for name in FORMATS},
    # `make man` writes the pages; without them all else is installed.
    data_files=[("share/man/man1", sorted(map(str, Path("build/man").glob("*.1"))))],
)
