"""Builds the kernels and the compiled modules, and names the packages; everything else is in pyproject.toml.

Kernels are written in Cython. Compiled modules are plain Python that mypyc compiles; without them (build with
STANTOOLS_INTERPRETED=1) their sources run instead. All of them are in one shared library, so that calls from one to
another are calls in C.
"""

import os
import re
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent))
from stantools import compiled_modules

KERNELS = [
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

#: Cython's own code for memory views, which otherwise is compiled again with each kernel.
SHARED = "stantools.cython_shared"

#: Modules on the way of a message through the broker.
COMPILED = [
    "broker.bus.embedded",
    "broker.busy_poll",
    "broker.nats.client",
    "broker.nats.client_router",
    "broker.nats.client_session",
    "broker.nats.connection",
    "broker.nats.fair_scheduler",
    "broker.nats.internal",
    "broker.nats.nats_server",
    "broker.nats.read_coalescer",
    "broker.nats.recipients",
    "broker.nats.router",
    "broker.nats.subscriptions",
    "broker.record_buffer",
    "broker.reserved",
    "broker.stores.blocklist",
    "broker.stores.file.file_messages",
    "broker.stores.file.file_subscriptions",
    "broker.stores.file.message_flush",
    "broker.stores.file.store",
    "broker.stores.limits",
    "broker.streaming.backlog",
    "broker.streaming.commit_delay",
    "broker.streaming.commits",
    "broker.streaming.context",
    "broker.streaming.delivery",
    "broker.streaming.inflight",
    "broker.streaming.publish",
    "broker.streaming.publisher_acks",
    "broker.streaming.publishes.columns",
    "broker.streaming.publishes.fields",
    "broker.streaming.registry",
    "broker.streaming.requests",
    "broker.streaming.state",
    "stantools.nats.encoding",
    "stantools.nats.frames",
]

#: Hashes of their sources when they were translated.
SOURCES: dict[str, str] = {}

#: Types of packages are ignored: they are not there in every build, and objects do not depend on them.
MYPY = ["--config-file=", "--no-site-packages", "--ignore-missing-imports"]

#: Packages whose names Spark looks for; in the source they are where they belong.
ENTRY = "stantools/pipeline/spark/entry"
FORMATS = ["pyspark_jetstream", "pyspark_stan"]


#: Commands that build objects.
BUILDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}


def source_of(module: str, ending: str) -> str:
    return module.replace(".", "/") + ending


def translate() -> list[Extension]:
    """Translates the compiled modules to C."""
    # It takes a while, and other commands load this file as well.
    if os.environ.get(compiled_modules.INTERPRETED) or not BUILDS.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    SOURCES.update(compiled_modules.hashes(COMPILED))
    extensions = mypycify(
        [*MYPY, *(source_of(module, ".py") for module in COMPILED)],
        group_name=compiled_modules.LIBRARY,
        target_dir="build/compiled",
        opt_level=os.environ.get("OPT", "2"),
        debug_level="0",
        multi_file=True,
    )
    for function in reads_of_none(Path("build/compiled/ops.txt").read_text()):
        sys.exit(f"{function} reads an attribute that it has set to None before a call, which may have changed it")
    for source in sorted(Path("build/compiled").rglob("__native_*.c")):
        for name in visited_twice(source.read_text()):
            sys.exit(f"{name} declares an attribute of its base class again")
    for each in extensions:
        # Warnings of other compilers are no errors.
        # In a package, the library's parts do not find its headers.
        each.include_dirs.append("build/compiled/stantools")
        each.extra_compile_args = [word for word in each.extra_compile_args or () if word != "-Werror"]
    return extensions


def reads_of_none(operations: str) -> list[str]:
    """Returns functions that raise TypeError if a call changes an attribute that they set to None before.

    For mypy the attribute is still None after the call, and the compiled function checks that it is.
    """
    functions = re.split(r"^def ", operations, flags=re.MULTILINE)
    between = r"(    (\w+_ref|if is_error\().*\n|L\d+:\n)*"
    read = re.compile(rf"(r\d+) = (borrow )?\w+\.\w+\n{between}    r\d+ = unbox\(None, \1\)")
    return [each.partition("(")[0] for each in functions if read.search(each)]


def visited_twice(source: str) -> list[str]:
    """Returns classes with attributes that the garbage collector counts twice: it keeps or frees the wrong objects."""
    traversals = re.findall(r"^(\w+)_traverse\([^{]*\{(.*?)^\}", source, re.DOTALL | re.MULTILINE)
    visits = [(name, re.findall(r"Py_VISIT\((self->\w+(?:\.\w+)*)\)", body)) for name, body in traversals]
    return [name for name, attributes in visits if len(set(attributes)) < len(attributes)]


class Build(build_ext):
    """Builds the objects, with a record of the sources of the compiled modules (`stantools.compiled_modules`)."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        places = [Path(self.build_lib), *([Path()] if self.inplace else [])]
        for place in places:
            self.remove_stale(place)
        super().run()
        if SOURCES:
            compiled_modules.write_record(places[-1], SOURCES)

    def remove_stale(self, place: Path) -> None:
        """Removes objects of modules that are no longer compiled, which would take the place of their sources."""
        known = {place / self.get_ext_filename(each.name) for each in self.extensions}
        for top in ("broker", "stantools"):
            for path in (place / top).rglob(f"*{self.get_ext_filename('')}"):
                if path not in known:
                    path.unlink()
        compiled_modules.record(place).unlink(missing_ok=True)


setup(
    ext_modules=[
        *cythonize(
            [
                Extension(name, [source_of(name, ending)], extra_compile_args=["-O3", "-g0"])
                for name, ending in [(SHARED, ".c"), *((kernel, ".pyx") for kernel in KERNELS)]
            ],
            language_level=3,
            quiet=True,
            shared_utility_qualified_name=SHARED,
        ),
        *translate(),
    ],
    cmdclass={"build_ext": Build},
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
