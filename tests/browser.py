"""A real browser for tests: chromium, headless, driven through its debugging pipe; `make browser` installs it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
TIMEOUT = 60.0  # seconds for one answer
# Chromium wants its pipe at the file descriptors 3 and 4.
START = """
import os, sys
reads, writes = int(sys.argv[1]), int(sys.argv[2])
reads, writes = os.dup(reads), os.dup(writes)
while min(reads, writes) < 5:
    reads, writes = os.dup(reads), os.dup(writes)
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
FACTS = """(async () => {
  const root = document.documentElement;
  const loaded = async image => image.decode().then(() => true, () => false);
  const pictures = [...document.querySelectorAll('img, svg image')];
  const box = element => element.getBoundingClientRect();
  const text = e => (e.id || e.className || e.tagName).toString();
  const scrolls = e => e.closest('.wide');
  return {
    width: root.clientWidth, scroll_width: root.scrollWidth, height: root.scrollHeight,
    outside: [...document.querySelectorAll('body *:not(svg *)')]
      .filter(e => !scrolls(e) && box(e).width && (box(e).right > root.clientWidth + 1 || box(e).left < -1)).map(text),
    clipped: [...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text')].filter(t =>
      box(t).left < box(s).left - 1 || box(t).right > box(s).right + 1 ||
      box(t).top < box(s).top - 1 || box(t).bottom > box(s).bottom + 1).map(t => t.textContent)),
    pictures: await Promise.all(pictures.map(loaded)),
    drawings: [...document.querySelectorAll('svg')].filter(s => !s.closest('[hidden]'))
      .map(s => [box(s).width, box(s).height]),
    background: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    labels: [...new Set([...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill))],
  };
})()"""


def find() -> str | None:
    """Path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass(frozen=True)
class Facts:
    """What a browser saw of a page.

    Attributes
    ----------
    width, scroll_width, height : int
        Of the window, of what is to be seen by scrolling to the right, and of the whole page.
    outside : list of str
        What stands out of the window on either side, other than in boxes that scroll.
    clipped : list of str
        Labels that stand out of their drawing.
    pictures : list of bool
        Whether each picture could be decoded.
    drawings : list of list of float
        Width and height of each SVG that is not hidden.
    background, ink : str
        Computed colours of the page.
    labels : list of str
        Computed colours of the texts in drawings.
    errors : list of str
        What went to the console as warning or error, and exceptions.
    requests : list of str
        Addresses asked for, other than those of files and data.
    """

    width: int
    scroll_width: int
    height: int
    outside: list[str]
    clipped: list[str]
    pictures: list[bool]
    drawings: list[list[float]]
    background: str
    ink: str
    labels: list[str]
    errors: list[str]
    requests: list[str]


class Browser:
    """One tab, spoken to in Chrome's DevTools protocol: JSON messages with a zero byte behind each."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._rest, self._count = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; events on the way are kept."""
        self._count += 1
        message = dict(id=self._count, method=method, params=params)
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page: Path, *, width: int, dark: bool = False) -> Facts:
        """Show a file in a window of that width."""
        scheme = dict(name="prefers-color-scheme", value="dark" if dark else "light")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        seen = self.call("Runtime.evaluate", expression=FACTS, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in seen:
            raise RuntimeError(str(seen["exceptionDetails"]))
        return Facts(**seen["result"]["value"], errors=self._errors(), requests=self._requests())

    def run(self, script: str) -> Any:
        """Value of an expression in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        text = {" ": " ", "Enter": "\r"}.get(key, "")
        code = KEY_CODES[key]
        for kind in ("keyDown", "keyUp"):
            more = dict(text=text) if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def save_downloads(self, folder: Path) -> None:
        """Save what is downloaded from now on in a folder."""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)

    def wait_for_download(self) -> None:
        """Wait until the next download is complete."""
        while True:
            for i, event in enumerate(self.events):
                if event.get("method") == "Browser.downloadProgress" and event["params"]["state"] == "completed":
                    del self.events[: i + 1]
                    return
            self.events.append(self._next())

    def said(self) -> tuple[list[str], list[str]]:
        """Errors, and addresses asked for, since the page was opened."""
        return self._errors(), self._requests()

    def screenshot(self, path: Path, height: int, width: int, top: int = 0) -> None:
        """Write a picture of the page, from `top` downwards."""
        clip = dict(x=0, y=top, width=width, height=height, scale=1)
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _errors(self) -> list[str]:
        said = []
        for event in self.events:
            match event:
                case {"method": "Runtime.exceptionThrown", "params": params}:
                    said.append(str(params))
                case {"method": "Runtime.consoleAPICalled", "params": {"type": "error" | "warning", "args": args}}:
                    said.append(str(args))
                case {"method": "Log.entryAdded", "params": {"entry": {"level": "error" | "warning", "text": text}}}:
                    said.append(text)
        return said

    def _requests(self) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:file:", "blob:null"))]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._rest:
            if not select.select([self._reads], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {TIMEOUT:g} s.")
            if not (got := os.read(self._reads, 1 << 20)):
                raise RuntimeError("the browser closed its pipe.")
            self._rest += got
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def running(path: str) -> Iterator[Browser]:
    """A browser that ends with the block."""
    options = [
        "--remote-debugging-pipe",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]
    options += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
    to_browser, from_browser = os.pipe(), os.pipe()
    inner = (to_browser[0], from_browser[1])
    # leftovers of processes that are about to end may still appear while the folder is removed
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, inner), path, *options, f"--user-data-dir={profile}"],
            pass_fds=inner,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in inner:
            os.close(end)
        try:
            yield Browser(from_browser[0], to_browser[1])
        finally:
            os.close(to_browser[1])  # the browser ends when its pipe does
            os.close(from_browser[0])
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
