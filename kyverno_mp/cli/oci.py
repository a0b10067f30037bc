"""``oci``: keep policies in image registries.

Room: cli. Takes: a file or folder and an image reference. Gives: an artifact with a
layer for each policy; or files of the policies in it. May touch: the named files,
the network, standard error. Source: docs/behaviour/cli 19.
"""

import os
from pathlib import Path
from typing import Final

import click
import msgspec
import yaml

from kyverno_mp.cli.cluster.registry_access import docker_client, soon_ns
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.errors import InputError
from kyverno_mp.limits import REGISTRY_LAYERS_MAX
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Policy
from kyverno_mp.policy.reading.decode import POLICIES, decode
from kyverno_mp.policy.reading.load import load
from kyverno_mp.registry.client import OCI_MANIFEST, Client, digest_of
from kyverno_mp.registry.image import descriptor_digest, read_image
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import KYVERNO_GROUP

_CONFIG_TYPE: Final = "application/vnd.cncf.kyverno.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.cncf.kyverno.policy.layer.v1+yaml"
_ANNOTATION: Final = "io.kyverno.image."
_NO_TIME: Final = "0001-01-01T00:00:00Z"
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o750

_Sources = list[tuple[AnyPolicy, dict[str, Json]]]


def push(source: str, image: str, client: Client) -> None:
    """Check all policies below ``source`` and store them.

    Raises: CommandFailed, InputError, DependencyError.
    """
    policies = _read(source)
    if not policies:
        raise CommandFailed(f"no policies found in {source}")
    compiled = compile_all([policy for policy, _ in policies], ())
    for name, problem in compiled.invalid:
        raise CommandFailed(f"validating policy {name}: {problem.message}")
    reference = _reference(image)
    layers = []
    for policy, raw in policies:
        kind = "policy" if isinstance(policy, Policy) else "cluster policy"
        _print(f"Adding {kind} [{policy.metadata.name}]")
        layers.append((raw, _yaml_of(raw)))
    _print(f"Uploading [{reference.name}]...")
    for _, data in layers:
        client.push_blob(reference, data, soon_ns())
    config = _json_of(_config(layers))
    client.push_blob(reference, config, soon_ns())
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": _descriptor(_CONFIG_TYPE, config),
        "layers": [
            {
                **_descriptor(_LAYER_TYPE, data),
                "annotations": {
                    f"{_ANNOTATION}apiVersion": raw["apiVersion"],
                    f"{_ANNOTATION}kind": raw["kind"],
                    f"{_ANNOTATION}name": raw["metadata"]["name"],
                },
            }
            for raw, data in layers
        ],
    }
    client.push_manifest(reference, _json_of(manifest), OCI_MANIFEST, soon_ns())
    click.echo("Done.", nl=False, err=True)


def pull(folder: Path, image: str, client: Client) -> None:
    """Write an image's policies to files; files with the same name are replaced.

    Raises: CommandFailed, InputError, DependencyError, OSError.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise CommandFailed(f"dir '{folder}' must be a directory")
    reference = _reference(image)
    _print(f"Downloading policies from an image [{reference.name}]...")
    stored = read_image(client, reference, soon_ns())
    layers = [layer for layer in _layers(stored.manifest) if _is_policy_layer(layer)]
    if len(layers) > REGISTRY_LAYERS_MAX:
        raise CommandFailed(f"{reference.name}: more than {REGISTRY_LAYERS_MAX} layers")
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for layer in layers:
        digest = descriptor_digest(layer, reference)
        data = client.blob(reference, digest, soon_ns())
        for raw in _policies_in(data, f"{reference.place}@{digest}"):
            file = folder / f"{raw['metadata']['name']}.yaml"
            _print(f"Saving policy into disk [{file}]...")
            _write(file, _yaml_of(raw))
    click.echo("Done.", nl=False, err=True)


def _reference(image: str) -> Reference:
    if not image:
        raise CommandFailed("image is required")
    return parse_reference(image)


def _read(source: str) -> _Sources:
    """Return all Kyverno policies; report and skip other documents."""
    checked: _Sources = []
    try:
        for data, file in sources(source):
            for document in load(data, file=file):
                raw = document.raw
                if type(raw) is not dict or not _is_policy(raw):
                    _print(
                        f"skipped: {file}: document {document.index} is not a policy"
                    )
                    continue
                policy = decode(raw, file=file)
                assert isinstance(policy, AnyPolicy)
                checked.append((policy, raw))
    except (InputError, OSError) as error:
        raise CommandFailed(
            f"unable to read policy file or directory {source} ({error})"
        ) from error
    return checked


def _is_policy(raw: Json) -> bool:
    group, _, _ = str(raw.get("apiVersion", "")).partition("/")
    return group == KYVERNO_GROUP and raw.get("kind") in POLICIES


def _config(layers: list[tuple[dict[str, Json], bytes]]) -> dict[str, Json]:
    """Return the image config that upstream's library creates for these layers."""
    return {
        "architecture": "",
        "config": {},
        "created": _NO_TIME,
        "history": [{"created": _NO_TIME} for _ in layers],
        "os": "",
        "rootfs": {
            "diff_ids": [digest_of(data) for _, data in layers],
            "type": "layers",
        },
    }


def _descriptor(media_type: str, data: bytes) -> dict[str, Json]:
    return {"mediaType": media_type, "size": len(data), "digest": digest_of(data)}


def _layers(manifest: Json) -> list[Json]:
    layers = manifest.get("layers")
    return layers if type(layers) is list else []


def _is_policy_layer(layer: Json) -> bool:
    return type(layer) is dict and layer.get("mediaType") == _LAYER_TYPE


def _policies_in(data: bytes, location: str) -> list[dict[str, Json]]:
    """Return the policies of a layer; raises CommandFailed for anything else."""
    try:
        policies = [document.raw for document in load(data, file=location)]
        for raw in policies:
            if type(raw) is not dict or not _is_policy(raw):
                raise CommandFailed(
                    f"unmarshaling layer blob: {location}: not a policy"
                )
            policy = decode(raw, file=location)
            assert isinstance(policy, AnyPolicy)
            name = policy.metadata.name
            # SAFETY: the name is untrusted and becomes a file name.
            if not name or name.startswith(".") or not _NAME.issuperset(name):
                raise CommandFailed(
                    f"unmarshaling layer blob: {location}: {name!r} is not a valid"
                    " policy name"
                )
    except InputError as error:
        raise CommandFailed(f"unmarshaling layer blob: {error.message}") from error
    return policies


def _write(file: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(file, flags, _FILE_MODE), "wb") as out:
        out.write(data)


def _yaml_of(raw: dict[str, Json]) -> bytes:
    return yaml.safe_dump(raw, sort_keys=True, allow_unicode=True).encode()


def _json_of(value: Json) -> bytes:
    return msgspec.json.encode(value)


def _print(message: str) -> None:
    say(message, err=True)


def push_called(source: str, image: str, *, insecure: bool) -> None:
    """Run ``oci push``."""
    push(source, image, docker_client(insecure=insecure))


def pull_called(folder: str, image: str, *, insecure: bool) -> None:
    """Run ``oci pull``."""
    pull(Path(folder), image, docker_client(insecure=insecure))
