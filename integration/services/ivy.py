"""Download jars from a Maven repository with Apache Ivy, which is included in PySpark."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from twopc.integration.services import ServiceError
from twopc.integration.services.java import FAST_START, java_command, trust_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S = 900
_SETTINGS = "TWOPC_IVY_SETTINGS"
#: The XML namespace of Ivy's extensions for Maven repositories.
_MAVEN = "http://ant.apache.org/ivy/maven"


class PermanentError(ServiceError):
    """An error that would occur again on another attempt."""


def pyspark_jars() -> Path:
    """Return the directory of the jars that PySpark ships.

    Raises:
        PermanentError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PermanentError(
            "PySpark is not installed. Run `pip install pyspark`. PySpark includes Ivy, which downloads the jars."
        )
    return Path(spec.origin).parent / "jars"


def ivy_file(
    coordinates: Iterable[str], *, transitive: bool = False, excluded: Iterable[str] = (), forced: Iterable[str] = ()
) -> str:
    """Return the content of an ivy.xml file.

    Args:
        coordinates: the artifacts to download, each "organisation:module:revision", or with a classifier as the fourth part.
        transitive: whether to download dependencies, too.
        excluded: names of modules to leave out.
        forced: coordinates of dependencies whose revisions replace the revisions that other modules ask for.
    """
    ET.register_namespace("m", _MAVEN)
    root = ET.Element("ivy-module", version="2.0")
    ET.SubElement(root, "info", organisation="twopc", module="jars")
    mapping = "default->default" if transitive else "default->master"
    ET.SubElement(ET.SubElement(root, "configurations", defaultconfmapping=mapping), "conf", name="default")
    dependencies = ET.SubElement(root, "dependencies")
    classifiers: dict[tuple[str, str, str], list[str]] = {}
    for coordinate in coordinates:
        organisation, module, revision, *classifier = coordinate.split(":")
        classifiers.setdefault((organisation, module, revision), []).extend(classifier or [""])
    for (organisation, module, revision), some in classifiers.items():
        wanted = {"org": organisation, "name": module, "rev": revision, "transitive": str(transitive).lower()}
        dependency = ET.SubElement(dependencies, "dependency", wanted)
        # Ivy accepts one dependency for each module. A dependency without a classifier need not name an artifact.
        for one in some if any(some) else ():
            extra = {f"{{{_MAVEN}}}classifier": one} if one else {}
            ET.SubElement(dependency, "artifact", {"name": module, "type": "jar", **extra})
    for name in sorted(excluded):
        ET.SubElement(dependencies, "exclude", org="*", module=name, matcher="exact")
    for coordinate in forced:
        organisation, module, revision = coordinate.split(":")
        ET.SubElement(dependencies, "override", org=organisation, module=module, rev=revision, matcher="exact")
    return ET.tostring(root, encoding="unicode")


def run_ivy(ivy_file: str, work: Path, name: str, *, verify: bool) -> None:
    """Download the files that an ivy.xml lists to `work/jars/ORGANISATION/MODULE/REVISION/`.

    Args:
        ivy_file: the text of the ivy.xml.
        work: a directory for the jars and for Ivy's files.
        name: distinguishes parallel runs in one directory.
        verify: whether Ivy checks SHA-1 and MD5, which takes one more request per file.

    Raises:
        ServiceError: the download failed. The error is a `PermanentError` if a file is missing from the repository.
    """
    file = work / f"ivy-{name}.xml"
    file.write_text(ivy_file)
    settings = os.environ.get(_SETTINGS)
    command: list[str | Path] = [
        java_command(),
        *("-Xmx256m", *FAST_START, *trust_arguments()),
        *([] if verify else ["-Divy.checksums="]),
        *("-jar", _ivy_jar()),
        *(["-settings", settings] if settings else []),
        *("-cache", work / f"ivy-{name}", "-ivy", file, "-confs", "default", "-types", "jar", "bundle", "-retrieve"),
        f"{work}/jars/[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]",
    ]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(
            f"Ivy did not finish within {_TIMEOUT_S} s. Check the network. To use a Maven mirror, set {_SETTINGS} to "
            "the path of an ivysettings.xml."
        ) from error
    if done.returncode != 0:
        raise _failure(done.returncode, done.stdout)


def _failure(code: int, output: str) -> ServiceError:
    problems = [
        line.strip()
        for line in output.splitlines()
        if re.search(r"not found|access error|FAILED|Exception|^Error", line) and "tried" not in line
    ]
    summary = "; ".join(dict.fromkeys(problems)) or output.strip()[-600:]
    if "not found" in summary and "error" not in summary.lower() and "FAILED" not in summary:
        return PermanentError(f"A file is missing from the Maven repository: {summary[:900]}")
    return ServiceError(
        f"Ivy could not download the jars (exit code {code}): {summary[:900]}. Check the network. To use a Maven "
        f"mirror, set {_SETTINGS} to the path of an ivysettings.xml."
    )


def _ivy_jar() -> Path:
    for found in pyspark_jars().glob("ivy-*.jar"):
        return found
    raise PermanentError(
        f"There is no ivy-*.jar in {pyspark_jars()}. Install the full `pyspark` package, not pyspark-client."
    )
