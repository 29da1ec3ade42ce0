"""A page that ``asv publish`` wrote, made to work without a network.

asv's page loads jQuery, flot, bootstrap and others from content networks and stays blank without them. Their files ship
here, unmodified, in ``vendor/``, with their licences and a manifest of SHA-256 hashes; they are copied beside the page
and its tags are rewritten. A tag *loads* where the browser fetches it by itself (a script, a style sheet, an image, a
frame); links to click on stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from precision_eval.core.errors import IntegrityError, PrecisionEvalError
from precision_eval.core.files import read_json, worked_out_from, written_whole

VENDOR = Path(__file__).with_name("vendor")
MANIFEST_NAME = "manifest.json"
FOLDER_NAME = "vendor"
"""Beside the page's ``index.html``."""

_URL = r"(?:https?:)?//[^\s\"'>)]+"
_LOADS = re.compile(
    rf"""(?isx) <!--.*?-->
    | (?P<tag><(?P<name>script|link|img|image|iframe|embed|object|source|audio|video|track|input|use)\b
        [^>]*?[\s,"'](?:src|srcset|href|xlink:href|data|poster)\s*=\s*["']?\s*(?:[^"'>]*,\s+)?(?P<url>{_URL})[^>]*>)
    | (?:url\(\s*["']?|@import\s+["']|\bimport\s+["'])\s*(?P<rule>{_URL})"""
)
_OF_THE_NETWORK = re.compile(
    r"""(?i)\s+(?:integrity|crossorigin|referrerpolicy)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+))?"""
)
_REMEDY = "take it from the repository again"

Vendored = Mapping[str, str]
"""One shipped file: `file`, the version it `stands_for`, `licence`, `sha256`."""


class PageError(PrecisionEvalError, ValueError):
    """A published page cannot be made to work offline, or asv could not publish it."""


def vendored(folder: Path = VENDOR) -> list[Vendored]:
    """Return what ships, in the order in which a page loads it."""
    with worked_out_from(folder / MANIFEST_NAME, remedy=_REMEDY):
        names = ("file", "stands_for", "licence", "sha256")
        return [{name: str(row[name]) for name in names} for row in read_json(folder / MANIFEST_NAME)["files"]]


def content_of(one: Vendored, folder: Path = VENDOR) -> bytes:
    """Return a shipped file's bytes, which must have the hash of the manifest."""
    path = folder / one["file"]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != one["sha256"]:
        raise IntegrityError(f"{path} has SHA-256 {sha256[:12]}…, expected {one['sha256'][:12]}…; {_REMEDY}")
    return content


def remote_urls(text: str) -> list[str]:
    """Return what a page or style sheet loads from another host, in the order of the text."""
    return [found["url"] or found["rule"] for found in _LOADS.finditer(text) if found["url"] or found["rule"]]


def make_offline(site: Path, *, folder: Path = VENDOR) -> tuple[str, ...]:
    """Rewrite the pages of a published site so that they load nothing from another host; return the files used."""
    if not (site / "index.html").is_file():
        raise PageError(f"{site} holds no index.html; give the folder that `asv publish` wrote, such as .asv/html")
    known = vendored(folder)
    used: dict[str, Vendored] = {}
    written: dict[Path, str] = {}
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        prefix = "../" * (len(path.relative_to(site).parts) - 1) + FOLDER_NAME

        def local(found: re.Match[str], path: Path = path, prefix: str = prefix) -> str:
            if found["rule"]:
                raise _unknown(path, found["rule"], [])
            if not found["tag"]:
                return found[0]
            one = _shipped(path, found["name"].lower(), found["url"], known)
            used[one["file"]] = one
            return _OF_THE_NETWORK.sub("", found["tag"]).replace(found["url"], f"{prefix}/{one['file']}")

        local_text = _LOADS.sub(local, text)
        if remote_urls(local_text):
            raise _unknown(path, remote_urls(local_text)[0], [])
        if local_text != text:
            written[path] = local_text
    contents = {one["file"]: content_of(one, folder) for one in used.values()}
    for name in (*{one["licence"] for one in used.values()}, *((MANIFEST_NAME,) if used else ())):
        contents[name] = (folder / name).read_bytes()
    for name, content in contents.items():  # the shipped files, then the pages that need them
        with written_whole(site / FOLDER_NAME / name) as partial:
            partial.write_bytes(content)
    for page, text in written.items():
        with written_whole(page) as partial:
            partial.write_text(text, encoding="utf-8")
    return tuple(used)


def _shipped(path: Path, tag: str, url: str, known: Sequence[Vendored]) -> Vendored:
    """Return the shipped file that stands for what a tag loads."""
    name = _plain(url.partition("?")[0].rsplit("/", 1)[-1])
    same = [one for one in known if _plain(one["file"]) == name and tag in ("script", "link")]
    for one in same:
        if one["stands_for"] in re.findall(r"\d+\.\d+\.\d+", url):
            return one
    raise _unknown(path, f"<{tag}> {url}", same)


def _plain(name: str) -> str:
    """Return a file's name without its version and ``.min``: ``jquery.js`` of ``jquery-3.3.1.min.js``."""
    return re.sub(r"-\d+(\.\d+)+", "", name).replace(".min.", ".").lower()


def _unknown(path: Path, what: str, same: Sequence[Vendored]) -> PageError:
    have = f"; {same[0]['file']} is here for version {same[0]['stands_for']} only" if same else ""
    return PageError(
        f"{path} loads {what} from another host and no shipped file stands for it{have}; publish with asv 0.6.4 to "
        f"0.6.6, or add the file to {VENDOR.parent.name}/{VENDOR.name}/{MANIFEST_NAME} with its hash and licence"
    )
