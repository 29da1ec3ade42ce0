"""Reads an HTML report back: its elements, its numbers with their origins, and whether records and engine say the same.

Written from what the report promises (``precision_eval.report.html``), not with the code that writes it.
"""

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br", "img", "input", "hr"}
NUMBER = re.compile(r"(?<![\w.])[−-]?\d+(?:[.,]\d+)*(?:e-?\d+)?(?!\w)")
UNITS = {"": 1, "%": 0.01, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
UNITS |= {"dB": 1}


@dataclass
class Node:
    """An element: tag, attributes, children (elements and texts), and what it lies in."""

    tag: str
    attrs: dict
    parent: "Node | None" = None
    children: list = field(default_factory=list)

    @property
    def text(self):
        return "".join(one if isinstance(one, str) else one.text for one in self.children)

    def within(self):
        node = self
        while node is not None:
            yield node
            node = node.parent

    def walk(self):
        yield self
        for one in self.children:
            if isinstance(one, Node):
                yield from one.walk()

    def having(self, name, value=None):
        return [n for n in self.walk() if name in n.attrs and value in (None, n.attrs[name])]

    def of_class(self, name):
        return [n for n in self.walk() if name in n.attrs.get("class", "").split()]


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.root = self.at = Node("", {})
        self.feed(text)
        assert self.at is self.root, f"<{self.at.tag}> is not closed"

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs), self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag, attrs):
        self.at.children.append(Node(tag, dict(attrs), self.at))

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> ends <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def read(text):
    """Return the root of a page."""
    return Reader(text).root


def loaded(root):
    """Return what a page fetches from elsewhere when it is opened."""
    named = [node.attrs.get(name) for node in root.walk() for name in ("src", "srcset", "href") if node.tag != "a"]
    return [address for address in named if address and not address.startswith(("data:", "#"))]


def records_of(run_dir):
    """Return {cell: the last of its lines, as plain JSON}, the environment among them."""
    lines = (run_dir / "records.jsonl").read_text(encoding="utf-8").splitlines()
    found = {record["cell"]: record for record in map(json.loads, lines)}
    path = run_dir / "environment.json"
    return found | ({"environment.json": json.loads(path.read_text(encoding="utf-8"))} if path.is_file() else {})


def at(document, pointer):
    """Follow a JSON pointer."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        document = document[int(name) if isinstance(document, list) else name]
    return document


def origin(attrs, records):
    """Return the value that an element's origin holds."""
    values = [
        at(records[cell], path)
        for cell, path in zip(attrs["data-record"].split(), attrs["data-path"].split(), strict=True)
    ]
    if "data-op" not in attrs:
        (value,) = values
        return value
    first, second = values
    if attrs["data-op"] == "mean_difference":
        return sum(first) / len(first) - sum(second) / len(second)
    assert attrs["data-op"] == "sum"
    return first + second


def says(text, value):
    """Whether a text is the value, rounded to the digits that it shows."""
    found = re.fullmatch(r"(?:× )?([+−-]?)([\d,]+(?:\.\d+)?)(?:e(-?\d+))?(?: (\S+))?", text.strip())
    if found is None:
        return False
    sign, digits, exponent, unit = found.groups()
    digits = digits.replace(",", "")
    scale = UNITS[unit or ""] * 10.0 ** int(exponent or 0)
    shown = float(digits) * scale * (-1 if sign in ("−", "-") else 1)
    decimals = len(digits.partition(".")[2])
    last = scale * 10.0**-decimals
    if "." not in digits and (unit or "") in ("KiB", "MiB", "GiB", "ms", "µs", "s", "ns"):
        last = scale * max(1.0, 10.0 ** (len(digits) - 3))  # three significant digits
    return abs(shown - value) <= 0.5001 * last or math.isclose(shown, value, rel_tol=1e-12)


def scale_of(text):
    """Return the function from values to pixels that a chart states."""
    kind, *ends = text.split(" ")
    low, high, start, end = map(float, ends)
    of = math.log if kind == "log" else float
    return lambda value: start + (of(value) - of(low)) / (of(high) - of(low)) * (end - start)


def numbers(root, records, counts):
    """Hold every number that names its origin to it; return how many there are.

    `counts` are the answer's: {"/policy/fix/taken": count}.
    """
    found = root.having("data-v")
    for node in found:
        value = float(node.attrs["data-v"])
        counted = node.attrs["data-record"] == "answer"
        true = counts[node.attrs["data-path"]] if counted else origin(node.attrs, records)
        assert value == true, (node.attrs, true)
        assert says(node.text, value), (node.text, value)
    return len(found)


def series(root, records):
    """Hold the values behind every line to the records; return how many there are."""
    count = 0
    for node in root.walk():
        if node.tag != "script" or "data-for" not in node.attrs:
            continue
        for line in json.loads(node.text)["lines"]:
            values = at(records[line["record"]], line["path"])
            times = at(records[line["record"]], f"{line['path'].rpartition('/')[0]}/time_s")
            assert [values[i] for i in line["i"]] == line["v"], line["record"]
            assert [times[i] for i in line["i"]] == line["t"], line["record"]
            count += len(line["v"])
    return count


def marks(root):
    """Hold the place of every mark of a trade-off chart to the numbers in its list; return how many there are."""
    count = 0
    tips = {node.attrs["id"]: node for node in root.of_class("tip")}
    for chart in root.of_class("chart"):
        if not chart.attrs["id"].startswith("tradeoff-"):
            continue
        to_x, to_y = (scale_of(chart.attrs[f"data-s{name}"]) for name in "xy")
        for mark in chart.of_class("mark"):
            lines = {n.children[0].text: n.children[1] for n in tips[mark.attrs["data-tip"]].walk() if n.tag == "div"
                     and len(n.children) == 2}  # fmt: skip
            ratio = float(lines["latency ratio"].having("data-v")[0].attrs["data-v"])
            if lines["latency ratio"].text.startswith("A/A"):
                ratio = 1.0
            drift = float(lines["drift"].having("data-v")[0].attrs["data-v"])
            x, y = place_of(mark)
            assert abs(to_x(ratio) - x) < 0.01, mark.attrs
            assert abs(to_y(drift) - y) < 0.01, mark.attrs
            count += 1
    return count


def place_of(group):
    """Return where matplotlib put the one symbol of a group."""
    (symbol,) = [node for node in group.walk() if node.tag == "use"]
    return float(symbol.attrs["x"]), float(symbol.attrs["y"])


def ticks(root):
    """Hold every tick with a label to its place on its scale; return how many there are."""
    count = 0
    for chart in root.of_class("chart"):
        for tick in chart.of_class("tick"):
            found = re.fullmatch(r"(?:([\d.]+)×)?10(−?\d+)|(−?[\d.]+)( %)?", "".join(tick.text.split("\n")).strip())
            if found is None:
                continue  # the name of a fix, or a tick without a label
            times, exponent, plain, percent = found.groups()
            if exponent is not None and ("." not in tick.text or times):
                power = 10.0 ** float(exponent.replace("−", "-"))
                values = {float(times or 1) * power}
            else:
                values = set()
            text = (plain or tick.text.strip()).replace("−", "-").removesuffix(" %")
            values |= {float(text) * (0.01 if percent else 1.0)} if re.fullmatch(r"-?[\d.]+", text) else set()
            axis = tick.attrs["class"].split()[1]
            symbols = [node for node in tick.walk() if node.tag == "use"]
            place = float(symbols[-1].attrs[axis])
            to_pixels = scale_of(chart.attrs[f"data-s{axis}"])
            is_log = chart.attrs[f"data-s{axis}"].startswith("log")
            places = [to_pixels(value) for value in values if value > 0 or not is_log]
            assert min(abs(one - place) for one in places) < 0.1, (tick.text, places, place)
            count += 1
    return count


def unnamed(root, *, said, fixed):
    """Return the texts that hold a number and neither name its origin nor are known sentences.

    `said` maps a kind of ``data-said`` to its sentences, or to a test of one; `fixed` is text that is part of the page
    itself.
    """
    found = []
    for node in root.walk():
        names = {one.attrs.get("data-said") for one in node.within()} - {None}
        own = {name for one in node.within() for name in one.attrs}
        if (
            node.tag in ("script", "style", "title")
            or "data-v" in own
            or any("tick" in one.attrs.get("class", "").split() for one in node.within())
        ):
            continue
        if names & {"changes"} or any(one.attrs.get("id") == "players" for one in node.within()):
            continue
        for text in node.children:
            if not isinstance(text, str) or not NUMBER.search(text):
                continue
            plain = " ".join(text.split())
            known = any(
                said[name](plain, node) if callable(said[name]) else plain in said[name]
                for name in names
                if name in said
            )
            if not known and plain not in fixed:
                found.append((plain[:120], sorted(names), node.tag))
    return found


def inline_scripts(text):
    """Return the sources of scripts that a page's policy allows, and those that its inline scripts need."""
    allowed = re.search(r"script-src ([^;]*);", text)[1].split()
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return allowed, [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def template_text(*paths: Path):
    """Return the texts of templates, without their tags and expressions."""
    found = set()
    for path in paths:
        source = re.sub(
            r"<style>.*?</style>|<script>.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        pieces = re.split(r"<[^>]*>|\{%.*?%\}|\{\{.*?\}\}", source)
        found |= {" ".join(piece.split()) for piece in pieces}
    return found
