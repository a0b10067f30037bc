"""Read the environment and flags into Settings, reporting all problems at once.

Room: settings. Takes: an environment mapping, overrides from flags. Gives: Settings.
Next: process/serve.py, cli. May touch: the environment, only in ``environment``; the
number of cores and the terminal, only in ``resolve``. Source: docs/architecture.md 2.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.environ import variables
from kyverno_mp.settings.fields import (
    PREFIX,
    Facts,
    facts_of,
    span_of,
    variable,
    variable_of,
)
from kyverno_mp.settings.machine import cores
from kyverno_mp.settings.nearest import nearest
from kyverno_mp.settings.settings import ONE_PER_CORE, Settings
from kyverno_mp.settings.texts import CHECKS
from kyverno_mp.settings.upstream import CONVERTERS, VARIABLES

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_POOLS = ("cleanup_workers", "background_workers", "reports_workers")
_SECOND_LINE = "\n  "


def environment() -> Mapping[str, str]:
    """Return the process environment."""
    return variables()


def read(
    env: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from ``env``; overrides other than None take precedence.

    If both our variable and upstream's (settings/upstream.py) are set, ours takes
    precedence. ``sources``: the names of overrides in errors, if not the default flag.

    Raises: SettingInvalid (``settings.invalid``), with every problem in one message.
    """
    hints = get_type_hints(Settings)
    upstream = {name: key for key, name in VARIABLES.items() if env.get(key)}
    fields = {variable_of(field): field for field in dataclasses.fields(Settings)}
    overridden = {k: v for k, v in (overrides or {}).items() if v is not None}
    problems = [
        _unknown(name, fields)
        for name in sorted(env)
        if name.startswith(PREFIX) and name not in fields
    ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        source, raw = name, env.get(name, "")
        if raw == "" and field.name in upstream:
            source = upstream[field.name]
            raw = env[source]
        if field.name in overridden:
            source = "--" + field.name.replace("_", "-")
            source = (sources or {}).get(field.name, source)
            raw = str(overridden[field.name])
        if raw == "":
            continue
        try:
            if source in CONVERTERS:
                raw = CONVERTERS[source](raw)[field.name]
            _check(field.name, raw)
            facts = facts_of(field)
            if raw != facts.word:
                values[field.name] = _value(raw, hints[field.name], facts)
        except ValueError as error:
            assignment = source if "=" in source else f"{source}={raw!r}"
            problems.append(f"{assignment}: {error}")
    if not problems:
        # Without a cluster, the service is tried out by one person on one machine.
        is_tried = values.get("standalone") and not values.get("authz_mode")
        values.setdefault("dashboard", bool(is_tried))
        settings = Settings(**values)
        problems = _together(settings)
        if not problems:
            return settings
    raise SettingInvalid(
        "settings.invalid",
        "invalid settings:" + _SECOND_LINE + _SECOND_LINE.join(problems),
    )


def resolve(settings: Settings, env: Mapping[str, str]) -> Settings:
    """Compute the defaults that depend on the machine: workers, folder, log format."""
    workers = settings.webhook_workers
    if workers == ONE_PER_CORE:
        workers = cores()
    runtime_dir = settings.runtime_dir
    if not runtime_dir:
        base = env.get("XDG_RUNTIME_DIR", "")
        if not base or not Path(base).is_dir():
            base = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"  # noqa: S108 - a private 0700 folder is made below it
        name = f"kyverno-mp-{os.getuid()}-{settings.webhook_port}"
        runtime_dir = str(Path(base) / name)
    return dataclasses.replace(
        settings,
        webhook_workers=workers,
        runtime_dir=runtime_dir,
        log_format=settings.log_format or ("text" if sys.stderr.isatty() else "json"),
    )


def _unknown(name: str, names: Mapping[str, object]) -> str:
    return f"{name}: no such setting; the nearest is {nearest(name, names)}"


def _check(name: str, raw: str) -> None:
    reason = CHECKS[name](raw) if name in CHECKS else ""
    if reason:
        raise ValueError(reason)


def _value(raw: str, kind: type, facts: Facts) -> str | float | bool:
    if kind is bool:
        word = raw.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("expected true or false")
        return word in _TRUE
    if kind is str:
        if any("\ud800" <= letter <= "\udfff" for letter in raw):
            raise ValueError("expected UTF-8")
        if facts.choices and raw not in facts.choices:
            raise ValueError(f"expected one of {', '.join(facts.choices)}")
        return raw
    return _number(raw, kind, facts)


def _number(raw: str, kind: type, facts: Facts) -> float:
    unit = "" if facts.unit == "port" else f" {facts.unit}"
    expected = f"{span_of(facts)}{unit}" + (f", or {facts.word}" if facts.word else "")
    try:
        # Python accepts 1_0 and digits of every script, which are never intended here.
        digits = raw if raw.isascii() and "_" not in raw else ""
        number = int(digits) if kind is int else float(digits)
    except ValueError:
        word = "a whole number" if kind is int else "a number"
        raise ValueError(f"expected {word}, {expected}") from None
    low, high = facts.low, facts.high
    # Written so that NaN, for which every comparison is false, is rejected, too.
    if low is not None and high is not None and not low <= number <= high:
        raise ValueError(f"expected {expected}")
    return number


def _together(settings: Settings) -> list[str]:
    """Return the problems that involve two settings."""
    problems = []
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        problems.append(
            f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE: give both or neither"
        )
    if settings.restart_delay_s_min > settings.restart_delay_s_max:
        problems.append(
            f"{PREFIX}RESTART_DELAY_S_MIN: above {PREFIX}RESTART_DELAY_S_MAX"
        )
    problems.extend(_of_collectors(settings))
    problems.extend(_of_metrics(settings))
    problems.extend(_of_roles(settings))
    if settings.webhook_port and settings.webhook_port == settings.health_port:
        problems.append(f"{PREFIX}HEALTH_PORT: same as {PREFIX}WEBHOOK_PORT")
    return problems


def _of_collectors(settings: Settings) -> list[str]:
    """Return the problems with the collectors of traces and metrics."""
    problems = []
    if settings.traces and not settings.traces_host:
        problems.append(f"{PREFIX}TRACES: needs {PREFIX}TRACES_HOST")
    if settings.otlp_ca_file and not settings.otlp_tls:
        problems.append(f"{PREFIX}OTLP_CA_FILE: needs {PREFIX}OTLP_TLS=true")
    return problems


def _of_metrics(settings: Settings) -> list[str]:
    """Return the problems with the certificate of the metrics."""
    cert, key = settings.metrics_cert_file, settings.metrics_key_file
    names = f"{PREFIX}METRICS_CERT_FILE and {PREFIX}METRICS_KEY_FILE"
    if bool(cert) != bool(key):
        return [f"{names}: give both or neither"]
    if cert and not settings.metrics_tls:
        return [f"{names}: need {PREFIX}METRICS_TLS=true"]
    has_own = settings.runs_webhook or settings.tls_cert_file
    if settings.metrics_tls and not (cert or has_own):
        return [f"{PREFIX}METRICS_TLS: needs {names} in a pod without webhook"]
    return []


def _of_roles(settings: Settings) -> list[str]:
    """Return the problems with the numbers of workers."""
    problems = [
        f"{variable(pool)}: needs a cluster; expected 0 with --standalone"
        for pool in _POOLS
        if settings.standalone and getattr(settings, pool)
    ]
    passes_on = settings.runs_webhook or settings.background_workers > 0
    for setting, is_possible, needed in (
        ("background_elsewhere", settings.runs_webhook, "a webhook"),
        ("reports_elsewhere", passes_on, "a webhook or the background pool"),
    ):
        if getattr(settings, setting) and (settings.standalone or not is_possible):
            name = variable(setting)
            problems.append(f"{name}: needs {needed}, and a cluster; expected false")
    runs_pool = any(getattr(settings, pool) for pool in _POOLS)
    if settings.authz_mode:
        problems += [
            f"{variable(name)}: an authorizer's pod runs nothing else"
            for name in (*_POOLS, "dashboard", "record_dir")
            if getattr(settings, name)
        ]
    judges = settings.standalone and settings.runs_webhook
    if settings.json_payloads and not (judges or settings.authz_mode == "http"):
        problems.append(
            f"{variable('json_payloads')}: needs --standalone, or an authorizer of mode"
            " http; no API server sends such payloads"
        )
    if settings.webhook_workers == 0 and (settings.authz_mode or not runs_pool):
        name = variable("webhook_workers")
        problems.append(f"{name}: 0 leaves this pod without anything to run")
    return problems
