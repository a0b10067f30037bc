"""Run control planes whose etcd has at the start what each would write into it.

A new API server takes seconds of CPU time to store its roles, flow schemas and our
definitions. So one does for all; the others get the values before they start, and add
what is missing. Only kinds that say nothing of one control plane are kept: their
values have no certificate, key, address or account, and no Namespace.

Takes: a folder. Gives: a running control plane. Values by key stay in the cache folder,
in a file whose name changes with everything that decides them. Next: control_plane.py.
May touch: the cache folder, control planes.
"""

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.e2e import control_plane, crds, etcd
from tests.e2e.api import Api
from tests.e2e.binaries import Binaries, cache_folder, find_binaries, locked
from tests.e2e.control_plane import THRIFT, ControlPlane

_ALIKE: Final = (
    "apiextensions.k8s.io/customresourcedefinitions",
    "apiregistration.k8s.io/apiservices",
    "clusterrolebindings",
    "clusterroles",
    "flowschemas",
    "priorityclasses",
    "prioritylevelconfigurations",
    "rolebindings",
    "roles",
)
"""The kinds, as etcd's keys name them."""
_SOURCES: Final = (__file__, control_plane.__file__, crds.__file__)


@contextlib.contextmanager
def running_plane(
    folder: Path,
    environment: Mapping[str, str] = THRIFT,
    *,
    has_definitions: bool = False,
) -> Iterator[ControlPlane]:
    """Run a control plane, with our CustomResourceDefinitions on request."""
    binaries = find_binaries()
    name = f"{_digest(binaries, has_definitions=has_definitions)}.json"
    values = kept(
        cache_folder() / "prepared" / name,
        lambda: _values(binaries, has_definitions=has_definitions),
    )
    plane = ControlPlane(binaries, folder, environment)
    plane.start(values)
    try:
        if has_definitions:
            with Api(plane.access) as api:
                crds.note_crds(api)
        yield plane
    finally:
        plane.stop()


def kept(file: Path, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return what the file has; of several processes, one makes it.

    A file that a killed process or a full disk left incomplete is made again.
    """
    with locked(file.parent):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads(file.read_bytes()))
        values = make()
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(values))
        unfinished.rename(file)
        return values


def _values(binaries: Binaries, *, has_definitions: bool) -> dict[str, str]:
    """Return the values of a control plane that starts with an empty etcd."""
    with tempfile.TemporaryDirectory(prefix="prepared-") as folder:
        plane = ControlPlane(binaries, Path(folder))
        try:
            plane.start()
            if has_definitions:
                with Api(plane.access) as api:
                    crds.install_crds(api)
            prefixes = [f"/registry/{kind}/" for kind in _ALIKE]
            return etcd.values(plane.etcd_url, prefixes)
        finally:
            plane.stop()


@functools.cache
def _digest(binaries: Binaries, *, has_definitions: bool) -> str:
    """Return a digest of the API server, its flags and the definitions."""
    sources = [binaries.kube_apiserver, *map(Path, _SOURCES)]
    if has_definitions:
        sources += sorted(crds.FOLDER.rglob("*.yaml"))
    digest = hashlib.sha256()
    for path in sources:
        with path.open("rb") as source:
            digest.update(hashlib.file_digest(source, "sha256").digest())
    return digest.hexdigest()[:16]
