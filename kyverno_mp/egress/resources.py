"""Let CEL policies read and create objects of the cluster.

Room: egress. Takes: apiVersion, plural name, namespace and name of objects. Gives:
LiveResources, the port of the variable ``resource``. Next: cli/cluster/live_data.py.
May touch: the API server through kube/rest.py.
Source: docs/behaviour/cel 12 (resource); docs/behaviour/lessons 4.2 rows 17, 22, 25.

A namespaced policy passes its own namespace with every call. The path is built here
from checked segments, so no expression can address another namespace.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

import msgspec

from kyverno_mp.egress.paths import namespaced_path, normal_path
from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.expr.cel.outside import FORBIDDEN
from kyverno_mp.kube.rest import Call, Client, segment
from kyverno_mp.values.jsonvalue import Json

_DENIED: Final = frozenset({"kube.forbidden", "kube.unauthorized"})
_NOT_FOUND: Final = "kube.not_found"
_DEADLINE: Final = "kube.deadline"


class LiveResources:
    """Objects of the API server; thread-safe.

    ``plural_of``: the plural name of (apiVersion, kind), "" for an unknown kind.
    ``is_namespaced``: for namespaced policies, which have the limits of their apiCalls
    (egress/paths.py): their own namespace only. ``is_dry_run``: a posted object is not
    stored.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        plural_of: Callable[[str, str], str],
        *,
        is_namespaced: bool = False,
        is_dry_run: bool = False,
    ) -> None:
        self._client = client
        self._plural_of = plural_of
        self._is_namespaced = is_namespaced
        self._is_dry_run = is_dry_run

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return the object, None if it does not exist.

        Raises: ExpressionFailed, DependencyError (``kube.deadline``).
        """
        namespace, name = key
        resource, slash, part = plural.partition("/")
        path = f"{_base(api_version, namespace)}/{_plain(resource)}/{_plain(name)}"
        if slash:
            path += f"/{_plain(part)}"
        path = self._checked(path, namespace, "GET")
        return self._answer("GET", path, None, deadline_ns, may_lack=True)

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        """Return the List. Raises: as ``get``."""
        path = f"{_base(api_version, namespace)}/{_plain(plural)}"
        if labels:
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            path += "?" + urlencode({"labelSelector": selector})
        path = self._checked(path, namespace, "GET")
        return _with_kinds(self._answer("GET", path, None, deadline_ns))

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> Json:
        """Create the object and return it. Raises: as ``get``."""
        resource = "/".join(map(_plain, plural.split("/")))
        path = f"{_base(api_version, namespace)}/{resource}"
        path = self._checked(path, namespace, "POST")
        if self._is_dry_run:
            path += "?dryRun=All"
        return self._answer("POST", path, body, deadline_ns)

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind. Raises: ExpressionFailed."""
        plural = self._plural_of(api_version, kind)
        if not plural:
            message = f'no matches for kind "{kind}" in version "{api_version}"'
            raise ExpressionFailed("resource.kind", message)
        return plural

    def _checked(self, path: str, namespace: str, method: str) -> str:
        """Return the path. Raises: ExpressionFailed if the policy cannot use it."""
        if self._is_namespaced:
            return namespaced_path(path, namespace, method)
        return normal_path(path)

    def _answer(
        self,
        method: str,
        path: str,
        body: Json,
        deadline_ns: int,
        *,
        may_lack: bool = False,
    ) -> Json:
        data = None if body is None else msgspec.json.encode(body)
        call = Call(method=method, path=path, body=data)
        try:
            return msgspec.json.decode(self._client().call(call, deadline_ns))
        except DependencyError as error:
            if error.code == _DEADLINE:
                raise
            if may_lack and error.code == _NOT_FOUND:
                return None
            code = FORBIDDEN if error.code in _DENIED else "resource.failed"
            raise ExpressionFailed(code, error.message) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExpressionFailed(
                "resource.failed", "the answer is not JSON"
            ) from error


def _base(api_version: str, namespace: str) -> str:
    """Return the path of a group and version, and of a namespace unless ``""``."""
    group, _, version = api_version.rpartition("/")
    root = f"/apis/{_plain(group)}" if group else "/api"
    path = f"{root}/{_plain(version)}"
    return f"{path}/namespaces/{_plain(namespace)}" if namespace else path


def _plain(name: str) -> str:
    """Return a valid path segment. Raises: ExpressionFailed for any other text."""
    if not name or name in (".", "..") or "/" in name or "%" in name:
        raise ExpressionFailed("egress.path", f"{name!r} is not a name")
    return segment(name)


def _with_kinds(listed: Json) -> Json:
    """Return a List whose items have apiVersion and kind.

    K8S: the API server omits both; Go's client derives them from the List
    (unstructured.decodeToList).
    """
    if type(listed) is not dict or type(listed.get("items")) is not list:
        return listed
    api_version = listed.get("apiVersion")
    kind = str(listed.get("kind") or "").removesuffix("List")
    for item in listed["items"] if kind else ():
        if type(item) is dict and not (item.get("kind") or item.get("apiVersion")):
            item.update(apiVersion=api_version, kind=kind)
    return listed
