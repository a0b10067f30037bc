"""A headless Chromium, driven through its debugging pipe.

Takes: the Chromium of the machine. Gives: Browser. Raises: Missing without one.
May touch: a profile folder; one process, which ends with the block.
Source: Chrome DevTools Protocol (Page, Runtime, Emulation, Input, Accessibility).
"""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.packages.tools import find
from tests.waiting import HANG_S


class Browser:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._text = b""
        self._session = ""
        self.events: list[Any] = []
        """What the page reported since the last navigation."""

    def attach(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a command; fails if the browser rejects it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def open(self, url: str) -> None:
        """Load a page and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_loaded()

    def wait_loaded(self) -> None:
        """Wait until a page is loaded; ``events``: whether it was already reported."""
        while not any(
            one.get("method") == "Page.loadEventFired" for one in self.events
        ):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def key(self, name: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                text="\r" if name == "Enter" and kind == "keyDown" else "",
            )

    def complaints(self) -> list[str]:
        """Return errors, dialogs and log entries since the page was opened."""
        methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialog")
        return [
            json.dumps(one)
            for one in self.events
            if str(one.get("method")).startswith(methods)
            # Browsers request it automatically.
            and "favicon.ico" not in json.dumps(one)
        ]

    def picture(self) -> bytes:
        """Return a PNG of the page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _next(self) -> Any:
        end = time.monotonic() + HANG_S
        while b"\0" not in self._text:
            left = end - time.monotonic()
            ready = select.select([self._answers], [], [], max(0.0, left))[0]
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser has ended"
            self._text += data
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Run Chromium until the block ends. Raises: Missing."""
    program = find("chromium")
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    flags = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage"
        " --no-first-run --disable-extensions --disable-background-networking"
        f" --user-data-dir={profile} --remote-debugging-pipe"
    )
    line = f"exec {program} {flags} 3<&{read_commands} 4>&{write_answers}"
    process = subprocess.Popen(
        ["bash", "-c", line],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        browser = Browser(commands, answers)
        browser.attach()
        yield browser
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
