"""Write a repository of the image rig as an OCI image layout folder."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.image_rig import OCI, Repository, digest_of


def write_layout(
    folder: Path,
    repository: Repository,
    *,
    name: Callable[[str], str] = str,
    kind: Callable[[str], str] | None = None,
) -> None:
    """Write the folder; entries have a ``name`` or a ``kind``, from their tag."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    contents = [*repository.blobs.values(), *(body for _, body in repository.manifests)]
    for content in contents:
        (blobs / digest_of(content)[7:]).write_bytes(content)
    entries = []
    for tag, body in repository.manifests:
        key = "kind" if kind else "org.opencontainers.image.ref.name"
        annotations = {key: kind(tag) if kind else name(tag)} if tag else {}
        entries.append(
            {
                "mediaType": OCI if b'"layers"' in body else "",
                "digest": digest_of(body),
                "size": len(body),
                "annotations": annotations,
            }
        )
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = {"schemaVersion": 2, "manifests": entries}
    (folder / "index.json").write_text(json.dumps(index))
