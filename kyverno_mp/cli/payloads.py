"""Read what policies in CEL are held against besides objects: contexts and payloads.

Room: cli. Takes: files named by a test or by flags of ``apply``. Gives: decoded data;
this version evaluates no policy that reads it, and checks that it could be read.
Next: apply, run_tests. May touch: files named by the user.
Source: spec/cli.md 5 (payloads), 6 (Context), 20.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.cli.errors import CommandFailed, not_read
from kyverno_mp.cli.strict import check_fields, check_maps, read_documents
from kyverno_mp.values.jsonvalue import Json

_TOP: Final = {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict}
_SPEC: Final = {"resources": list, "images": list}
_IMAGE: Final = {
    "image": str,
    "resolvedImage": str,
    "registry": str,
    "repository": str,
    "tag": str,
    "digest": str,
    "imageIndex": dict,
    "manifest": dict,
    "config": dict,
}
_YAML: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class ContextFile:
    """What CEL reads as the cluster and as registries; ``images`` by their name."""

    resources: Sequence[dict[str, Json]]
    images: dict[str, dict[str, Json]]


def load_context(path: Path) -> ContextFile:
    """Read a Context file; raises CommandFailed on unknown fields."""
    documents = read_documents(path)
    top = check_fields(documents[0] if documents else {}, _TOP, str(path))
    if top.get("kind") != "Context":
        raise CommandFailed(f"{path}: expected kind Context")
    spec = check_fields(top.get("spec", {}), _SPEC, f"{path}: spec")
    images: dict[str, dict[str, Json]] = {}
    given = check_maps(spec.get("images"), f"{path}: spec.images")
    for index, raw in enumerate(given):
        image = check_fields(raw, _IMAGE, f"{path}: spec.images[{index}]")
        images[image.get("image", "")] = image
    resources = check_maps(spec.get("resources"), f"{path}: spec.resources")
    return ContextFile(resources, images)


def load_payload(path: Path) -> dict[str, Json]:
    """Read a JSON or YAML payload; raises CommandFailed unless it is one map."""
    if path.suffix == ".json" or path.suffix in _YAML:
        try:
            found = [_json(path)] if path.suffix == ".json" else read_documents(path)
        except CommandFailed as error:
            text = f"failed to load JSON payload ({error.message})"
            raise CommandFailed(text) from error
    else:
        raise CommandFailed(
            "failed to load JSON payload (unrecognized payload format, must be yaml or"
            f" json ({path}))"
        )
    if len(found) != 1 or not isinstance(found[0], dict):
        # KYVERNO: upstream's process ends by a panic.
        raise CommandFailed(f"failed to load JSON payload ({path}: not one map)")
    return found[0]


def load_check_request(path: Path) -> dict[str, Json]:
    """Read the request of an authorization policy; raises CommandFailed."""
    found = _json(path)
    if not isinstance(found, dict):
        raise CommandFailed(f"{path}: expected a map")
    return found


def _json(path: Path) -> Json:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailed(not_read(error, path)) from error
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{path}: {error}") from error
