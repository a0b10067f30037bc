"""Sign objects as YAML, as kubectl-sigstore does.

Gives: ``message`` (base64 of gzip of an archive), ``signed`` (an object with the
annotations). May touch: nothing.
"""

import base64
import copy
import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tests.image_rig import Signer

DOMAIN = "cosign.sigstore.dev"


def archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a compressed archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0)


def of_objects(*objects: Mapping[str, Any]) -> bytes:
    """Return the signed content."""
    text = yaml.safe_dump_all(objects).encode()
    return archive([("manifests/a.yaml", text)])


def encoded(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def annotated(
    document: Mapping[str, Any], message: bytes, *signatures: bytes
) -> dict[str, Any]:
    """Return the object with a message and its signatures."""
    made = copy.deepcopy(dict(document))
    annotations = made.setdefault("metadata", {}).setdefault("annotations", {})
    annotations[f"{DOMAIN}/message"] = encoded(message)
    for index, signature in enumerate(signatures):
        suffix = f"_{index}" if index else ""
        text = base64.b64encode(signature).decode()
        annotations[f"{DOMAIN}/signature{suffix}"] = text
    return made


def signed(
    document: Mapping[str, Any], signer: Signer, *others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the signed object; ``others``: further objects in the same message."""
    message = of_objects(document, *others)
    return annotated(document, message, signer.sign(message))
