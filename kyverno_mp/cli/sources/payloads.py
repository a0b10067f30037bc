"""Read Context files and payloads for policies in CEL.

Room: cli. Takes: files named by a test or by flags of ``apply``. Gives: decoded data.
Next: apply, testing. May touch: files named by the user.
Source: docs/behaviour/cli 5 (payloads), 6 (Context), 20.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.cli.sources.shapes import CONTEXT_FILE
from kyverno_mp.cli.sources.strict import objects_of, read_documents, read_fields
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.expr.cel.authz.messages import Message

_YAML: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class ContextFile:
    """The simulated cluster and registries for CEL; ``images`` by name."""

    resources: Sequence[dict[str, Json]]
    images: dict[str, dict[str, Json]]


class CheckRequest(NamedTuple):
    """A request for the policies of an evaluation mode, and its file."""

    mode: str
    path: str
    request: "Message"


def load_context(path: Path, *, is_argument: bool = False) -> ContextFile:
    """Read a Context file; raises CommandFailed on unknown fields."""
    spec = read_fields(path, CONTEXT_FILE, is_argument=is_argument).get("spec", {})
    # GO: of several images with the same name, the last one wins.
    images = {image.get("image", ""): image for image in spec.get("images", [])}
    return ContextFile(objects_of(spec), images)


def load_payload(path: Path) -> dict[str, Json]:
    """Read a JSON or YAML payload; raises CommandFailed unless it is a single map.

    GO: all numbers of a JSON file are doubles; integers of a YAML file are not.
    """
    if path.suffix == ".json" or path.suffix in _YAML:
        try:
            is_json = path.suffix == ".json"
            documents = [_json(path, number=float)] if is_json else read_documents(path)
        except CommandFailed as error:
            message = f"failed to load JSON payload ({error.message})"
            raise CommandFailed(message) from error
    else:
        raise CommandFailed(
            "failed to load JSON payload (unrecognized payload format, must be yaml or"
            f" json ({path}))"
        )
    if len(documents) != 1 or not isinstance(documents[0], dict):
        # KYVERNO: upstream's process panics.
        raise CommandFailed(f"failed to load JSON payload ({path}: not one map)")
    return documents[0]


def load_check_request(mode: str, path: str) -> CheckRequest:
    """Read a request for policies in evaluation mode HTTP or Envoy.

    Raises: CommandFailed.
    """
    # PERF: imports CEL, which only runs with such requests need.
    from kyverno_mp.expr.cel.authz.http import http_request
    from kyverno_mp.expr.cel.authz.library import mode_of
    from kyverno_mp.expr.cel.authz.message_json import from_proto

    described = mode_of(mode)
    word, kind = described.word, described.schema[described.request]
    failure = f"failed to parse {word} payload from {path}"
    try:
        data = json.loads(read_file(Path(path)))
        request = http_request(data) if mode == "HTTP" else from_proto(kind, data)
    except OSError as error:
        reason = f"failed to read {word} payload file {path}"
        cause = read_error(error, Path(path))
        raise CommandFailed(f"{failure}: {reason}: {cause}") from error
    except (ValueError, RecursionError) as error:
        # MessageInvalid is a ValueError, too.
        raise CommandFailed(f"{failure}: {error}") from error
    return CheckRequest(mode, path, request)


def _json(path: Path, number: Callable[[str], float] | None = None) -> Json:
    """Decode a file; ``number`` converts its integers."""
    try:
        return json.loads(read_file(path), parse_int=number)
    except OSError as error:
        raise CommandFailed(read_error(error, path)) from error
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{path}: {error}") from error
