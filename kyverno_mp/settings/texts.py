"""Check at start that a string is a valid value of a setting.

Room: settings. Takes: the text of a variable or flag. Gives: CHECKS, setting -> check.
Next: settings/read.py. May touch: nothing.
Source: docs/behaviour/controllers 10.1-10.3; Kubernetes' names (RFC 1123).

Such mistakes would otherwise be noticed late or never: a filter that matches nothing,
an unknown reason of Events, a name for which the API server answers 404.
"""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Final

from kyverno_mp.policy.resource_filters import filters_problem
from kyverno_mp.values.budget import budget_problem
from kyverno_mp.values.field_paths import field_paths_problem

Check = Callable[[str], str]
"""Returns the expected format, or "" if the text is valid."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
)
_URL: Final = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?\Z")
_PORT_MAX: Final = 65535
EVENT_REASONS: Final = (
    "PolicyApplied",
    "PolicySkipped",
    "PolicyViolation",
    "PolicyError",
)


def _label(text: str) -> str:
    if _LABEL.fullmatch(text):
        return ""
    return "expected lower-case letters, digits and '-', at most 63"


def _name(text: str) -> str:
    if _NAME.fullmatch(text) and ".." not in text:
        return ""
    return "expected lower-case letters, digits, '-' and '.', at most 253"


def _namespace_or_all(text: str) -> str:
    return "" if text == "*" else _label(text) and "expected a namespace's name or *"


def _account(text: str) -> str:
    found = _ACCOUNT.fullmatch(text)
    if found and not _label(found[1]) and not _name(found[2]):
        return ""
    return "expected system:serviceaccount:<namespace>:<name>"


def _server(text: str) -> str:
    found = _SERVER.fullmatch(text)
    if found and 0 < int(found[2] or _PORT_MAX) <= _PORT_MAX:
        return ""
    return "expected host, host:port or [IPv6]:port, without a scheme"


def _host(text: str) -> str:
    found = _SERVER.fullmatch(text)
    return "" if found and not found[2] else "expected a host, without scheme and port"


def _secrets(text: str) -> str:
    for one in filter(None, (part.strip() for part in text.split(","))):
        namespace, slash, name = one.lstrip("/").rpartition("/")
        reason = _name(name) or (slash and _label(namespace))
        if reason:
            return reason
    return ""


def _reasons(text: str) -> str:
    for one in text.split(","):
        reason = one.strip()
        if reason and reason not in EVENT_REASONS:
            return f"{reason!r} is not one of {', '.join(EVENT_REASONS)}"
    return ""


def _patterns(text: str) -> str:
    for one in text.split(","):
        if one.strip() and not one.strip().removeprefix("!").strip():
            return "expected a name after '!'"
    return ""


def _some_names(text: str) -> str:
    return "" if any(one.strip() for one in text.split(",")) else "expected a name"


def _words(*known: str) -> Check:
    def check(text: str) -> str:
        for one in text.split(","):
            if one.strip() and one.strip() not in known:
                return f"{one.strip()!r} is not one of {', '.join(known)}"
        return ""

    return check


def _mirror(text: str) -> str:
    return "" if not text or _URL.match(text) else "expected a URL with http or https"


def _file_or_url(text: str) -> str:
    known = "://" not in text or _URL.match(text)
    return "" if known else "expected a file, or a URL with http or https"


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return "expected base64"
    return ""


CHECKS: Final[Mapping[str, Check]] = {
    "resource_filters": filters_problem,
    "exclude_groups": _patterns,
    "exclude_usernames": _patterns,
    "exclude_roles": _patterns,
    "exclude_cluster_roles": _patterns,
    "exception_namespace": _namespace_or_all,
    "omit_events": _reasons,
    "reports_of": _words(
        "validate", "mutate", "mutateExisting", "generate", "imageVerify"
    ),
    "image_pull_secrets": _secrets,
    "registry_credential_helpers": _words(
        "default", "google", "amazon", "azure", "github"
    ),
    "reports_results": _words("pass", "fail", "error", "warn", "skip"),
    "namespace": _label,
    "config_map_name": _name,
    "metrics_config_map_name": _name,
    "deployment_name": _name,
    "service_account_name": _name,
    "service_name": _label,
    "ca_secret_name": _name,
    "tls_secret_name": _name,
    "server_ip": _server,
    "background_service_account": _account,
    "reports_service_account": _account,
    "cleanup_service_account": _account,
    "cleanup_deletion_budget": budget_problem,
    "tuf_mirror": _mirror,
    "tuf_root": _file_or_url,
    "tuf_root_raw": _base64,
    "record_redact": field_paths_problem,
    "record_plain": _words("env", "args", "annotations"),
    "client_names": _some_names,
    "traces_host": _host,
    "metrics_push_host": _host,
}
