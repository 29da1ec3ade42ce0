"""A headless Chromium for tests: what a page's DOM is in the end, what its console said, which hosts were asked.

Conventions: the browser is the Debian package ``chromium``, or what ``CHROMIUM`` names. Each visit has a new profile
and a resolver that finds nothing but this machine, so that a page that needs another host shows it. Times: seconds.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = (
    f"no browser: none of {', '.join(NAMES)} is installed and CHROMIUM names none; "
    "`apt-get install chromium` brings one"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--no-proxy-server"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
TIMEOUT_S = 90.0
OWN = "not an origin"
"""Who asks for what no page asked for: the browser, and whoever typed the address."""
_CONSOLE = re.compile(r'^\[[^\]]*:CONSOLE[:(]\d+\)?\]\s*"?(?P<text>.*)$')


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What a visit showed.

    Attributes
    ----------
    dom : str
        The document as it was in the end.
    console : tuple of str
        Lines of the console.
    asked : tuple of str
        Addresses that the page requested, in order.
    """

    dom: str
    console: tuple[str, ...]
    asked: tuple[str, ...]

    @property
    def other_hosts(self) -> set[str]:
        """Hosts that were asked, other than this machine."""
        return {urlsplit(url).hostname for url in self.asked if url.startswith("http")} - {"127.0.0.1", None}


def find_chromium() -> str | None:
    """Return the browser's path; None where there is none."""
    names = (os.environ["CHROMIUM"],) if os.environ.get("CHROMIUM") else NAMES
    return next((path for path in map(shutil.which, names) if path), None)


def visit(url, *, width=1280, height=900, dark=False, screenshot=None, virtual_ms=6000, flags=()):
    """Open a page in a new profile and return a :class:`Visit`.

    Parameters
    ----------
    url : str
    width, height : int
        Of the window, pixels.
    dark : bool
        Prefer dark colours.
    screenshot : Path, optional
        Write a PNG here; then the DOM is empty.
    virtual_ms : int
        How long the page's own clock runs before it is read; 0 reads it when it has loaded.
    flags : iterable of str
        Of the browser, beside :data:`FLAGS`.
    """
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "net.json"
        command = [_browser(), *FLAGS, *flags, f"--user-data-dir={folder}/profile", f"--log-net-log={log}"]
        command += ["--enable-logging=stderr", "--v=0", f"--window-size={width},{height}"]
        command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        command += [f"--virtual-time-budget={virtual_ms}"] if virtual_ms else []
        command += [f"--screenshot={screenshot}"] if screenshot else ["--dump-dom"]
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        asked = _asked(log)
    lines = [found["text"] for found in map(_CONSOLE.match, done.stderr.splitlines()) if found]
    return Visit(dom=done.stdout, console=tuple(lines), asked=asked)


@contextmanager
def served(folder: Path):
    """Serve a folder on a free port of this machine; yields the address without a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        """Say nothing."""


def _browser() -> str:
    path = find_chromium()
    if path is None:
        raise RuntimeError(NO_BROWSER)
    return path


def _asked(log: Path) -> tuple[str, ...]:
    """Return the addresses of a net log; one that was cut off is closed first."""
    text = log.read_text(encoding="utf-8").rstrip().rstrip(",")
    for end in ("", "]}", "}"):
        try:
            content = json.loads(text + end)
            break
        except ValueError:
            continue
    else:
        raise RuntimeError(f"{log} is no net log: …{text[-200:]}")
    pages = [event["params"] for event in content["events"] if event.get("params", {}).get("initiator", OWN) != OWN]
    return tuple(dict.fromkeys(params["url"] for params in pages))
