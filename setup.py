"""Builds the compiled kernels and names the packages; everything else is in pyproject.toml."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup

MODULES = [
    "broker.stores.streams.kernels",
    "broker.streaming.publishes.kernels",
    "stantools.format.kernels",
    "stantools.streamfiles.kernels",
    "stantools.migration.proof.kernels",
    "stantools.nats.kernels",
    "stantools.nats.publishing.kernels",
    "stantools.store.guard",
    "stantools.store.folding",
]

#: Packages whose names Spark looks for; in the source they are where they belong.
ENTRY = "stantools/pipeline/spark/entry"
FORMATS = ["pyspark_jetstream", "pyspark_stan"]

setup(
    ext_modules=cythonize(
        [Extension(name, [f"{name.replace('.', '/')}.pyx"], extra_compile_args=["-O3", "-g0"]) for name in MODULES],
        language_level=3,
        quiet=True,
    ),
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
