"""Read a UserInfo file: who asks.

Room: cli. Takes: a path. Gives: UserInfo. Next: evaluate.
May touch: the file named by the user. Source: spec/cli.md 6.
"""

from dataclasses import dataclass, field
from pathlib import Path

from kyverno_mp.cli.strict import check_fields, read_documents
from kyverno_mp.values.jsonvalue import Json

_TOP = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "roles": list,
    "clusterRoles": list,
    "userInfo": dict,
    "synchronize": bool,
}
_USER = {"username": str, "uid": str, "groups": list, "extra": dict}


@dataclass(slots=True)
class UserInfo:
    """The requesting user; ``raw`` is the userInfo map as written."""

    username: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    raw: dict[str, Json] = field(default_factory=dict)
    deprecated: bool = False


def deprecation(what: str, path: str | Path) -> str:
    """Return the warning of a file without apiVersion or kind."""
    return (
        f"\nWARNING: {what} file ({path}) uses a deprecated schema that will be removed"
        " in 1.15"
    )


def load_user_info(path: Path) -> UserInfo:
    """Read the file; raises CommandFailed on unknown fields."""
    documents = read_documents(path)
    top = check_fields(documents[0] if documents else {}, _TOP, str(path))
    user = check_fields(top.get("userInfo", {}), _USER, f"{path}: userInfo")
    return UserInfo(
        username=user.get("username", ""),
        groups=tuple(user.get("groups", ())),
        roles=tuple(top.get("roles", ())),
        cluster_roles=tuple(top.get("clusterRoles", ())),
        raw=user,
        deprecated=not (top.get("apiVersion") and top.get("kind")),
    )
