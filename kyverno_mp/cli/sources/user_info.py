"""Read a UserInfo file: the user who sends the requests.

Room: cli. Takes: a path. Gives: UserInfo. Next: cli/apply/evaluate.
May touch: the file named by the user. Source: docs/behaviour/cli 6.
"""

from pathlib import Path

import msgspec

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.values.jsonvalue import Json


class UserInfo(msgspec.Struct):
    """The requesting user; ``raw`` is the userInfo map as written."""

    username: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    raw: dict[str, Json] = {}
    is_zero: bool = False
    """KYVERNO: a file without any value counts as a background scan: match filters drop
    user criteria (docs/behaviour/engine 1.6)."""
    deprecated: bool = False


def deprecation(kind: str, path: str | Path) -> str:
    """Return the warning of a file without apiVersion or kind."""
    return (
        f"\nWARNING: {kind} file ({path}) uses a deprecated schema that will be removed"
        " in 1.15"
    )


def load_user_info(path: Path, *, is_argument: bool = False) -> UserInfo:
    """Read the file; raises CommandFailed on unknown fields."""
    # Imported late: rarely needed.
    from kyverno_mp.cli.sources.shapes import USER_INFO_FILE
    from kyverno_mp.cli.sources.strict import read_fields

    try:
        top = read_fields(path, USER_INFO_FILE, is_argument=is_argument)
    except CommandFailed as error:
        message = f"failed to decode yaml ({error.message})"
        if isinstance(error.__cause__, OSError):
            message = f"unable to read yaml (unable to read yaml ({error.message}))"
        raise CommandFailed(message) from error
    user = top.get("userInfo", {})
    return UserInfo(
        username=user.get("username", ""),
        groups=tuple(user.get("groups", ())),
        roles=tuple(top.get("roles", ())),
        cluster_roles=tuple(top.get("clusterRoles", ())),
        raw=user,
        is_zero=_is_zero(top, user),
        deprecated=not (top.get("apiVersion") and top.get("kind")),
    )


def _is_zero(top: dict[str, Json], user: dict[str, Json]) -> bool:
    """Tell whether the user is Go's zero value; an empty list or map is not zero."""
    strings = (top.get("synchronize"), user.get("username"), user.get("uid"))
    lists = (top.get("roles"), top.get("clusterRoles"))
    parts = (*lists, user.get("groups"), user.get("extra"))
    return not any(strings) and all(part is None for part in parts)
