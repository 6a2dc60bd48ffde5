"""A headless Chromium, driven through its DevTools pipe: no port, no driver, no download.

Imports nothing of draftlab.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)
DEADLINE_SECONDS = 60


def program() -> str | None:
    """Where a Chromium is, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page. Collects what the page complains about and what it asks for."""

    def __init__(self, size=(1400, 1000)):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # DevTools reads commands from descriptor 3 and answers on 4; a shell puts the pipes there.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", program(), *FLAGS,
             f"--user-data-dir={self._profile.name}", f"--window-size={size[0]},{size[1]}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._number, self._buffer, self._session = 0, b"", None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def send(self, method, **parameters):
        """One DevTools command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("chromium has closed its pipe")
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        event = json.loads(text)
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(event["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(event["params"]["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
        return event

    def open(self, path: Path, ready="document.readyState === 'complete'"):
        """Load a file and wait until the expression `ready` holds."""
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait(ready)

    def wait(self, expression):
        """Until the expression holds; fails with what the page said if it never does."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not self.ask(f"Boolean({expression})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression}; the page said {self.complaints}")
            time.sleep(0.05)

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key):
        """Press and release a named key, like ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point(self, selector, *, click=False):
        """Move the pointer over the first match of a selector, and click if asked to."""
        x, y = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0];"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                          clickCount=1)  # fmt: skip

    def prefer(self, scheme, media=""):
        """Emulate the system's light or dark scheme, and a medium such as print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path, *, whole=False):
        """Save what is on screen, or the whole page, as PNG."""
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))
