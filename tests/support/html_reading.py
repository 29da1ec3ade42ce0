"""Reads HTML back as a tree of elements."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


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

    def walk(self):
        yield self
        for one in self.children:
            if isinstance(one, Node):
                yield from one.walk()


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
