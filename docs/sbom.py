"""Writes the software bill of materials of a release, as CycloneDX JSON: what is built, and what it depends on.

    python docs/sbom.py DIST           (or: make dist)

What stantools needs is read from the wheel in DIST; the versions are those of the environment that this runs in, which
are the ones that the tests passed with (constraints.txt).
"""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import os
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRA = "all"  #: the optional parts that users install
_LONGEST_NAME = 40  #: characters; what is longer is the text of a license, not its name


def bill(dist: Path) -> Bom:
    """Returns the bill of the files in a directory.

    Raises:
        PackageNotFoundError: A dependency is not installed here.
    """
    [wheel] = dist.glob("*.whl")
    [folder] = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    own = metadata.PathDistribution(folder)  # type: ignore[arg-type]
    root = _component(own, None)
    for path in sorted([wheel, *dist.glob("*.tar.gz")]):
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())]
        root.components.add(Component(name=path.name, type=ComponentType.FILE, bom_ref=path.name, hashes=hashes))
    required, graph = _graph(own, set()), _graph(own, {EXTRA})
    components = {own.name: root}
    for name in sorted(graph.keys() - {own.name}):
        scope = ComponentScope.REQUIRED if name in required else ComponentScope.OPTIONAL
        components[name] = _component(metadata.distribution(name), scope)
    bom = Bom(components=[each for each in components.values() if each is not root])
    bom.metadata.component = root
    for name, needs in graph.items():
        bom.register_dependency(components[name], [components[each] for each in sorted(needs)])
    # The same files make the same bill.
    if seconds := os.environ.get("SOURCE_DATE_EPOCH"):
        bom.metadata.timestamp = datetime.fromtimestamp(int(seconds), UTC)
    content = [digest.content for file in root.components for digest in file.hashes]
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, " ".join([*sorted(content), *map(str, sorted(components))]))
    return bom


def _graph(own: metadata.Distribution, extras: set[str]) -> dict[str, set[str]]:
    """Returns what a package with these extras needs, and what that needs: name -> the packages that it needs."""
    graph: dict[str, set[str]] = {}
    todo, seen = [(own.name, frozenset(extras))], set()
    while todo:
        name, wanted = step = todo.pop()
        if step in seen:
            continue
        seen.add(step)
        needs = graph.setdefault(name, set())
        for text in (own if name == own.name else metadata.distribution(name)).requires or ():
            requirement = Requirement(text)
            extra = [{"extra": each} for each in wanted or ("",)]
            if requirement.marker is None or any(map(requirement.marker.evaluate, extra)):
                found = canonicalize_name(requirement.name)
                needs |= {found} - {name}
                todo.append((found, frozenset(requirement.extras)))
    return graph


def _component(distribution: metadata.Distribution, scope: ComponentScope | None) -> Component:
    about = distribution.metadata
    licenses = LicenseFactory()
    expression, name = about.get("License-Expression"), about.get("License", "").strip()
    if not expression and not 0 < len(name) <= _LONGEST_NAME:
        classified = [each for each in about.get_all("Classifier") or () if each.startswith("License ::")]
        name = classified[0].rpartition(" :: ")[2] if classified else ""
    found = licenses.make_from_string(expression) if expression else licenses.make_with_name(name) if name else None
    return Component(
        name=about["Name"],
        version=about["Version"],
        bom_ref=f"{about['Name']}=={about['Version']}",
        type=ComponentType.LIBRARY if scope else ComponentType.APPLICATION,
        scope=scope,
        description=about["Summary"],
        licenses=[found] if found else [],
    )


def main() -> None:
    """Writes the bill beside the files that it is about."""
    dist = Path(sys.argv[1])
    written = bill(dist)
    about = written.metadata.component
    path = dist / f"{about.name}-{about.version}.cdx.json"
    path.write_text(JsonV1Dot6(written).output_as_string(indent=2) + "\n", encoding="utf-8")
    sys.stderr.write(f"{path}: written\n")


if __name__ == "__main__":
    main()
