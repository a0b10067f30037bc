"""The command line and the standalone service need no call that only Linux has.

A failure means: on macOS, a command ends with an AttributeError, or the service does
not start. Expected: docs/get.md; typeshed, which says what each system has.
"""

import ast
import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mypy
import psutil
import pytest

from tests.portable import LINUX_ONLY
from tests.waiting import HANG_S, wait_for

ROOT: Final = Path(__file__).resolve().parents[3]
SAMPLES: Final = ROOT / "config/samples"
_JSON: Final = {"Content-Type": "application/json"}
STUBS: Final = Path(mypy.__file__).parent / "typeshed/stdlib"
MODULES: Final = {
    **dict.fromkeys(("select", "mmap", "fcntl", "resource", "termios", "signal")),
    **dict.fromkeys(("os", "socket", "time", "threading", "ctypes", "errno")),
}


def names_on(platform: str, module: str) -> set[str]:
    """Return the names that typeshed gives a module on a platform."""
    path = STUBS / f"{module}.pyi"
    path = path if path.exists() else STUBS / module / "__init__.pyi"
    return set(_names(ast.parse(path.read_text()).body, platform))


def _names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for part in body:
        match part:
            case ast.If(test, inner, other):
                yield from _names(inner if _holds(test, platform) else other, platform)
            case ast.Assign(targets):
                yield from (one.id for one in targets if isinstance(one, ast.Name))
            case ast.AnnAssign(ast.Name(name)):
                yield name
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name
            case ast.ClassDef(name):
                yield name
            case ast.Import(names) | ast.ImportFrom(_, names):
                yield from (one.asname or one.name for one in names)


def _holds(test: ast.expr, platform: str) -> bool:
    """Evaluate a condition about platform and version."""
    facts = type("sys", (), {"platform": platform, "version_info": sys.version_info})
    try:
        return bool(eval(ast.unparse(test), {"sys": facts}))
    except NameError:  # TYPE_CHECKING
        return True


def used(module: str) -> dict[str, str]:
    """Return the names of a module that our code uses, each with a file."""
    found = {}
    for path in sorted((ROOT / "kyverno_mp").rglob("*.py")):
        text = path.read_text()
        if f"import {module}" not in text and f"from {module} " not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Attribute(ast.Name(name), attribute) if name == module:
                    found[attribute] = path.name
                case ast.ImportFrom(name, names) if name == module:
                    found |= {one.name: path.name for one in names}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_names_exist_on_macos(module: str) -> None:
    """A name that only Linux has is looked up by name (settings/machine.py)."""
    elsewhere, here = names_on("darwin", module), names_on("linux", module)
    lost = here - elsewhere
    if module in ("os", "socket", "time"):
        assert lost, "typeshed is read wrongly"
    assert {name: file for name, file in used(module).items() if name in lost} == {}


def test_the_rig_takes_away_what_linux_adds() -> None:
    for module, names in LINUX_ONLY.items():
        assert not set(names) & names_on("darwin", module.__name__)


def run(*words: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.portable", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("version",), "Follows Kyverno"),
        (("apply", SAMPLES / "policies", "-r", SAMPLES / "resources"), "fail: 3"),
        (("apply", SAMPLES / "policies", "-r", SAMPLES / "resources", "--jobs", "2"),
         "fail: 3"),
        (("test", SAMPLES / "kinds-test"), "passed"),
        (("lint", SAMPLES / "policies"), "0 errors"),
    ],
)  # fmt: skip
def test_commands(words: tuple[str | Path, ...], shown: str) -> None:
    code, text = run(*words)
    assert shown in text
    assert "Traceback" not in text
    assert code in (0, 1)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start the standalone service; yield its process and its log."""
    log = folder / "log"
    words: tuple[str | Path, ...] = ("--standalone", "--workers", "2")
    words += ("--policies", SAMPLES / "policies")
    words += ("--port", "0", "--health-port", "0", "--runtime-dir", folder / "run")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.portable", "serve", *map(str, words)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def port(log: Path, name: str, process: "subprocess.Popen[bytes]") -> int:
    def found() -> int | None:
        assert process.poll() is None, log.read_text()
        line = re.search(rf"{name} +https?://localhost:(\d+)/", log.read_text())
        return int(line[1]) if line else None

    return wait_for(found)


def metrics_of(health: int) -> str:
    link = http.client.HTTPConnection("localhost", health, timeout=HANG_S)
    with contextlib.closing(link):
        link.request("GET", "/metrics")
        return link.getresponse().read().decode()


def test_the_standalone_service(tmp_path: Path) -> None:
    """It reviews, measures its processes, and stops, all of it without Linux."""
    with served(tmp_path) as (process, log):
        reviews, health = (port(log, one, process) for one in ("reviews", "metrics"))
        context = ssl.create_default_context(cafile=tmp_path / "run/tls/ca.crt")
        for name, is_allowed in (("pod-allowed", True), ("pod-denied", False)):
            link = http.client.HTTPSConnection(
                "localhost", reviews, timeout=HANG_S, context=context
            )
            with contextlib.closing(link):
                body = (SAMPLES / f"reviews/{name}.json").read_bytes()
                link.request("POST", "/validate", body, _JSON)
                answer = json.loads(link.getresponse().read())
            assert answer["response"]["allowed"] is is_allowed
        measured = re.compile(r'process_pss_bytes\{process="leader[^"]*"\} [1-9]')
        wait_for(lambda: measured.search(metrics_of(health)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
        assert "Traceback" not in log.read_text()


def test_processes_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    with served(tmp_path) as (process, log):
        port(log, "reviews", process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4, "leader, health, arbiter, workers"
        process.kill()
        process.wait()
        wait_for(lambda: not any(child.is_running() for child in children))
