"""Read, write and find objects as chainsaw does.

Takes: a connection, objects as plain JSON. Gives: objects, or Refused with the API
server's message. Next: run.py.
May touch: the cluster.
Source: chainsaw pkg/engine/operations: apply and patch send the object as a merge patch
when it exists.
"""

import urllib.parse
from typing import Any, Final

from tests.e2e.api import PATCH_TYPES, Api, Refused

NOT_FOUND: Final = 404


class Objects:
    """The objects of a cluster; objects without a namespace belong to ``namespace``."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._resources: dict[str, dict[str, dict[str, Any]]] = {}

    def locate(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the object with its namespace filled in, where its kind has one."""
        if not self._resource(wanted)["namespaced"]:
            return wanted
        meta = wanted.get("metadata") or {}
        return {
            **wanted,
            "metadata": {"namespace": self._namespace, **meta},
        }

    def create(self, wanted: dict[str, Any], *, dry_run: bool = False) -> Any:
        """Create; raises Refused."""
        return self._ask("POST", self._collection(wanted), wanted, dry_run=dry_run)

    def apply(self, wanted: dict[str, Any], *, dry_run: bool = False) -> Any:
        """Create an object, or patch the existing one."""
        if self.find_one(wanted) is None:
            return self.create(wanted, dry_run=dry_run)
        return self.patch(wanted, dry_run=dry_run)

    def patch(self, wanted: dict[str, Any], *, dry_run: bool = False) -> Any:
        """Merge into the existing object; raises Refused if there is none."""
        return self._ask("PATCH", self._path(wanted), wanted, dry_run=dry_run)

    def update(self, wanted: dict[str, Any], *, dry_run: bool = False) -> Any:
        """Replace the existing object, whatever its version."""
        now = self._ask("GET", self._path(wanted))
        meta = {
            **(wanted.get("metadata") or {}),
            "resourceVersion": now["metadata"]["resourceVersion"],
        }
        replaced = {**wanted, "metadata": meta}
        return self._ask("PUT", self._path(wanted), replaced, dry_run=dry_run)

    def delete(self, wanted: dict[str, Any], propagation: str = "Background") -> None:
        """Delete; a missing object is not an error."""
        try:
            self._ask("DELETE", self._path(wanted), {"propagationPolicy": propagation})
        except Refused as refused:
            if refused.status != NOT_FOUND:
                raise

    def find_one(self, wanted: dict[str, Any]) -> Any:
        """Return the object with that name, or None."""
        try:
            return self._ask("GET", self._path(wanted))
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    def find(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the object that ``wanted`` names, or all with its labels."""
        meta = wanted.get("metadata") or {}
        if meta.get("name"):
            found = self.find_one(wanted)
            return [] if found is None else [found]
        labels = meta.get("labels") or {}
        plain = [f"{key}={value}" for key, value in labels.items() if "(" not in key]
        query = urllib.parse.urlencode({"labelSelector": ",".join(plain)})
        listed = self._ask("GET", f"{self._collection(wanted)}?{query}")
        head = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"]}
        return [{**head, **item} for item in listed.get("items") or []]

    def _path(self, wanted: dict[str, Any]) -> str:
        name = urllib.parse.quote(wanted["metadata"]["name"], safe="")
        return f"{self._collection(wanted)}/{name}"

    def _collection(self, wanted: dict[str, Any]) -> str:
        version = wanted["apiVersion"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resource = self._resource(wanted)
        if resource["namespaced"]:
            base = f"{base}/namespaces/{wanted['metadata']['namespace']}"
        return f"{base}/{resource['name']}"

    def _resource(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Look the kind up; this also finds a kind that was just installed."""
        version, kind = wanted["apiVersion"], wanted["kind"]
        known = self._resources.get(version, {})
        if kind not in known:
            base = "/apis" if "/" in version else "/api"
            status, answer = self._api.ask("GET", f"{base}/{version}")
            listed = answer["resources"] if status == 200 else []
            known = {one["kind"]: one for one in listed if "/" not in one["name"]}
            self._resources[version] = known
        if kind not in known:
            text = f'no matches for kind "{kind}" in version "{version}"'
            raise Refused(NOT_FOUND, {"message": text})
        return known[kind]

    def _ask(
        self, method: str, path: str, body: Any = None, *, dry_run: bool = False
    ) -> Any:
        content_type = "application/json"
        if method in ("POST", "PUT", "PATCH"):
            path = f"{path}?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        if method == "PATCH":
            content_type = PATCH_TYPES["merge"]
        status, answer = self._api.ask(method, path, body, content_type)
        if not 200 <= status < 300:  # the class of successful answers
            raise Refused(status, answer)
        return answer
