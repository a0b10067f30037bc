"""Answer GET paths of the API server from canned objects.

Room: leader. Takes: raw cluster objects, ApiCallAnswer documents. Gives: answers by
``<METHOD> <path>``. Next: leader/cluster_data.py.
Source: Kubernetes API concepts (paths of resources); docs/behaviour/engine 3.7
(apiCall).
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

ANSWER_VERSION: Final = "kyverno-mp.io/v1alpha1"
FACTS: Final = "ClusterFacts"
"""The kind of the document that says what a file of ``facts`` has in full."""
_CLUSTER_SCOPED: Final = frozenset(
    built_in.kind for built_in in BUILT_IN if not built_in.is_namespaced
)
_Answers = dict[str, Json]


def name_of(raw: dict[str, Json]) -> str:
    """Return metadata.name, "" if missing."""
    return str((raw.get("metadata") or {}).get("name", ""))


def namespace_of(raw: dict[str, Json]) -> str:
    """Return the namespace, ``default`` if missing."""
    return str((raw.get("metadata") or {}).get("namespace") or "default")


def plural_of(kind: str) -> str:
    """Return the plural of a kind by the rule of client-go's fake clients."""
    low = kind.lower()
    if low == "endpoints":
        return low
    if low.endswith("s"):
        return low + "es"
    return low[:-1] + "ies" if low.endswith("y") else low + "s"


def base_path(api_version: str) -> str:
    """Return the path of a group and version, e.g. ``/apis/apps/v1``."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def api_answers(objects: list[dict[str, Json]]) -> _Answers:
    """Return the GET responses for every object and for the lists that contain it.

    Shape: ``{"GET /api/v1/namespaces/a/pods": {"data": {"kind": "PodList", ..}}}``.
    """
    answers: _Answers = {}
    for raw in objects:
        version, kind = str(raw.get("apiVersion", "")), str(raw.get("kind", ""))
        base, plural = base_path(version), plural_of(kind)
        lists = [f"{base}/{plural}"]
        if kind not in _CLUSTER_SCOPED:
            lists.append(f"{base}/namespaces/{namespace_of(raw)}/{plural}")
        for path in lists:
            listing = answers.setdefault(
                f"GET {path}",
                {
                    "data": {
                        "apiVersion": version,
                        "kind": f"{kind}List",
                        "metadata": {},
                        "items": [],
                    }
                },
            )
            listing["data"]["items"].append(raw)
        answers[f"GET {lists[-1]}/{name_of(raw)}"] = {"data": raw}
    return answers


def image_key(reference: str) -> str:
    """Return the key of an image's data, with a method that does not exist in HTTP."""
    return f"IMAGE {reference}"


def answer_of(raw: dict[str, Json]) -> tuple[str, Json]:
    """Return the key and the response of an ApiCallAnswer or ImageData document."""
    spec = raw.get("spec") or {}
    if raw.get("kind") == "ImageData":
        key = image_key(str(spec.get("reference") or ""))
        if spec.get("error"):
            return key, {"error": str(spec["error"])}
        return key, {"data": spec.get("data")}
    target = spec.get("urlPath") or spec.get("url") or ""
    key = f"{str(spec.get('method') or 'GET').upper()} {target}"
    if spec.get("error"):
        return key, {"error": str(spec["error"])}
    return key, {"data": spec.get("response")}
