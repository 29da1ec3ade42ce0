"""A page that ``asv publish`` wrote, made to work without a network.

Conventions: asv's page loads jQuery, flot, bootstrap and others from content networks and stays blank without them.
Their files ship with this package, unmodified, in ``vendor/`` beside this module, with their licences and a manifest of
SHA-256 hashes; they are copied beside the page and its tags are rewritten. A tag *loads* where the browser fetches it
by itself (a script, a style sheet, an image, a frame); links to click on stay. Importing this loads neither torch nor
numpy.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html.parser import HTMLParser
from pathlib import Path

from precision_eval.core.errors import IntegrityError, PrecisionEvalError
from precision_eval.core.files import read_json, worked_out_from, written_whole

VENDOR = Path(__file__).with_name("vendor")
MANIFEST_NAME = "manifest.json"
FOLDER_NAME = "vendor"
"""Beside the page's ``index.html``."""

_ATTRIBUTES = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
_ALSO_LOADED = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"]|\bimport\s+['\"])\s*((?:https?:)?//[^'\")\s]+)", re.I)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_REMEDY = "take it from the repository again"
_OF_THE_NETWORK = ("integrity", "crossorigin", "referrerpolicy")


class PageError(PrecisionEvalError, ValueError):
    """A published page cannot be made to work offline, or asv could not publish it."""


@dataclass(frozen=True, kw_only=True)
class Vendored:
    """One shipped file."""

    file: str
    stands_for: str
    licence: str
    sha256: str

    def content(self, folder: Path = VENDOR) -> bytes:
        """Return the file's bytes."""
        path = folder / self.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != self.sha256:
            raise IntegrityError(f"{path} has SHA-256 {sha256[:12]}…, expected {self.sha256[:12]}…; {_REMEDY}")
        return content


def vendored(folder: Path = VENDOR) -> tuple[Vendored, ...]:
    """Return what ships, in the order in which a page loads it."""
    names = tuple(field.name for field in fields(Vendored))
    with worked_out_from(folder / MANIFEST_NAME, remedy=_REMEDY):
        rows = read_json(folder / MANIFEST_NAME)["files"]
        return tuple(Vendored(**{name: str(row[name]) for name in names}) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A tag, or a rule of a style sheet, that loads something from another host."""

    name: str
    url: str
    start: int
    end: int
    attributes: tuple[tuple[str, str | None], ...] = ()

    @property
    def line(self) -> str:
        """How a message names it."""
        return f"<{self.name}> {self.url}"


def is_remote(url: str) -> bool:
    """Say whether a browser would ask another host for `url`."""
    return re.match(r"\s*(https?:)?//", url, re.I) is not None


class _Reader(HTMLParser):
    """Collects the tags that load from another host."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Tag] = []
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        row, column = self.getpos()
        start = self._lines[row - 1] + column
        end = start + len(self.get_starttag_text() or "")
        for name, value in attrs:
            if value and name in _ATTRIBUTES.get(tag, ()):
                urls = [one.split()[0] for one in value.split(",") if one.split()] if name == "srcset" else [value]
                wanted = [url for url in urls if is_remote(url)]
                self.found += [Tag(name=tag, url=url, start=start, end=end, attributes=tuple(attrs)) for url in wanted]

    handle_startendtag = handle_starttag


def remote_tags(text: str) -> tuple[Tag, ...]:
    """Return whatever in a page or style sheet loads from another host, in the order of the text."""
    tags = _Reader(text).found
    rules = [
        Tag(name="style", url=match.group(1), start=match.start(1), end=match.end(1))
        for match in _ALSO_LOADED.finditer(text)
    ]
    return tuple(sorted([*tags, *rules], key=lambda tag: tag.start))


def make_offline(site: Path, *, folder: Path = VENDOR) -> tuple[str, ...]:
    """Rewrite the pages of a published site so that they load nothing from another host."""
    if not (site / "index.html").is_file():
        raise PageError(f"{site} holds no index.html; give the folder that `asv publish` wrote, such as .asv/html")
    known = vendored(folder)
    used: dict[str, Vendored] = {}
    written: dict[Path, str] = {}
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        prefix = "../" * (len(path.relative_to(site).parts) - 1) + FOLDER_NAME
        pieces, place = [], 0
        for tag in remote_tags(text):
            one = stub(tag, known)
            used[one.file] = one
            pieces += [text[place : tag.start], _local(tag, f"{prefix}/{one.file}")]
            place = tag.end
        if place:
            written[path] = "".join([*pieces, text[place:]])
    contents = {one.file: one.content(folder) for one in used.values()}
    _refuse_remote(site, written)
    _write(site, written, contents, [one.licence for one in used.values()], folder)
    return tuple(contents)


def stub(tag: Tag, known: Sequence[Vendored]) -> Vendored:
    """Return the shipped file that stands for what a tag loads."""
    name = _plain(tag.url.partition("?")[0].rsplit("/", 1)[-1])
    same = [one for one in known if _plain(one.file) == name and tag.name in ("script", "link")]
    found = _VERSION.findall(tag.url)
    for one in same:
        if one.stands_for in found:
            return one
    have = f"; {same[0].file} is here for version {same[0].stands_for} only" if same else ""
    raise PageError(
        f"the page loads {tag.line} and no shipped file stands for it{have}; publish with asv 0.6.4 to 0.6.6, "
        f"or add the file to {VENDOR.parent.name}/{VENDOR.name}/{MANIFEST_NAME} with its hash and licence"
    )


def _plain(name: str) -> str:
    """Return a file's name without its version and ``.min``: ``jquery.js`` of ``jquery-3.3.1.min.js``."""
    return re.sub(r"-\d+(\.\d+)+", "", name).replace(".min.", ".").lower()


def _local(tag: Tag, url: str) -> str:
    """Return the tag with another address; hashes and origins of the network do not apply to a local file."""
    kept = [(name, url if value == tag.url else value) for name, value in tag.attributes if name not in _OF_THE_NETWORK]
    words = "".join(f" {name}" if value is None else f' {name}="{html.escape(value)}"' for name, value in kept)
    return f"<{tag.name}{words}>"


def _refuse_remote(site: Path, written: dict[Path, str]) -> None:
    """Raise where a page or style sheet, as it would be, still loads from another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css") or not path.is_file():
            continue
        for tag in remote_tags(written.get(path) or path.read_text(encoding="utf-8", errors="replace")):
            if path.suffix == ".html" or tag.name == "style":
                raise PageError(
                    f"{path} would still load {tag.line} from another host; "
                    "remove it from the page, or publish with asv 0.6.4 to 0.6.6"
                )


def _write(
    site: Path, pages: dict[Path, str], contents: dict[str, bytes], licences: Sequence[str], folder: Path
) -> None:
    """Write the shipped files, then the pages that need them, each whole or not at all."""
    target = site / FOLDER_NAME
    for name, content in contents.items():
        with written_whole(target / name) as path:
            path.write_bytes(content)
    for name in (*sorted(set(licences)), *((MANIFEST_NAME,) if contents else ())):
        with written_whole(target / name) as path:
            path.write_bytes((folder / name).read_bytes())
    for page, text in pages.items():
        with written_whole(page) as path:
            path.write_text(text, encoding="utf-8")
