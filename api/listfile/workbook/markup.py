"""The XML of a workbook's parts: parsers with bounds, and where elements stand.

ECMA-376 part 2 allows no document type, so there are no entities. A part is read in UTF-8
alone, as every spreadsheet writes it: what is added to it is UTF-8.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import IO
from xml.parsers import expat

from msgspec import Struct

READ_OCTETS = 1 << 16
TOKEN_OCTETS_MAX = 1 << 16  # of a tag or comment, which a parser holds and may read repeatedly
DEPTH_MAX = 100  # of elements, each of which costs a parser memory; drawings nest about 20

# A tag from its beginning. An attribute's value may contain `>`.
TAG = re.compile(rb"""<[^\s"'>]++(?:[^"'>]++|"[^"]*+"|'[^']*+')*+>""")
COUNT = re.compile(rb"""(\scount\s*=\s*["'])\d+""")


def open_parser(encoding: str | None = "utf-8") -> expat.XMLParserType:
    """A parser that raises ValueError for a document type and for an encoding that is not UTF-8.

    None: any encoding that expat knows.
    """
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_document_type
    if encoding is not None:
        parser.XmlDeclHandler = _check_encoding
    return parser


def _refuse_document_type(*_: object) -> None:
    raise ValueError("declares a document type")


def _check_encoding(version: str, encoding: str | None, standalone: int) -> None:
    if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii"):
        raise ValueError("is not in UTF-8")


def fed_pieces(parser: expat.XMLParserType, stream: IO[bytes]) -> Iterator[bytes]:
    """Feed a part to its parser and yield each piece then; the last is empty.

    Raises ValueError for a token that is too long: a parser may read one anew with each piece.
    """
    fed = 0
    while True:
        piece = stream.read(READ_OCTETS)
        parser.Parse(piece, not piece)
        fed += len(piece)
        if piece and fed - parser.CurrentByteIndex > TOKEN_OCTETS_MAX:
            raise ValueError("has a tag or comment without end")
        yield piece
        if not piece:
            return


def tag_end(octets: bytes | bytearray, begin: int) -> int:
    """Where the start tag ends that begins there."""
    tag = TAG.match(octets, begin)
    if tag is None:
        raise ValueError("has a tag without end")
    return tag.end()


class Element(Struct):
    """An element of a part, with the offsets of its content and its end, which are the same in `<empty/>`."""

    name: str  # with its prefix
    attributes: dict[str, str]
    parent: str  # its name without a prefix
    begin: int
    children: int = 0
    content: int = 0
    content_end: int = 0
    end: int = 0

    @property
    def local(self) -> str:
        return local_name(self.name)

    @property
    def prefix(self) -> str:
        """The prefix with its colon."""
        return self.name[: -len(self.local)]


@lru_cache(maxsize=256)  # a sheet has two dozen names, and a million elements
def local_name(name: str) -> str:
    """An element's name without its prefix."""
    return name.rpartition(":")[2]


def elements_of(octets: bytes, *wanted: str) -> list[Element]:
    """The elements with these names in any namespace, in the order of their beginnings.

    Raises ExpatError or ValueError if the part is ill-formed.
    """
    parser = open_parser()
    found: list[Element] = []
    ancestors: list[Element] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        parent = ""
        if ancestors:
            parent = ancestors[-1].local
            ancestors[-1].children += 1
        element = Element(name, attributes, parent, parser.CurrentByteIndex)
        ancestors.append(element)
        if len(ancestors) > DEPTH_MAX:
            raise ValueError("nests too deep")
        if element.local in wanted:
            found.append(element)

    def end(_: str) -> None:
        element = ancestors.pop()
        if element.local in wanted:
            element.content = tag_end(octets, element.begin)
            is_empty = octets[element.content - 2 : element.content] == b"/>"
            close = parser.CurrentByteIndex
            element.content_end = element.content if is_empty else close
            element.end = element.content if is_empty else octets.index(b">", close) + 1

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.Parse(octets, True)
    return found


def escaped(text: str) -> str:
    """The text as an element's content. The standard library's function imports its HTTP client."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def with_children(octets: bytes, parent: Element, made: str, count: int | None = None) -> bytes:
    """A part with children added at the end of an element, and its attribute `count` set."""
    tag, content = octets[parent.begin : parent.content], made.encode()
    if count is not None:
        tag = COUNT.sub(lambda found: found[1] + b"%d" % count, tag, count=1)
    if parent.content == parent.content_end and tag.endswith(b"/>"):
        tag, content = tag[:-2].rstrip() + b">", content + f"</{parent.name}>".encode()
    before = octets[: parent.begin] + tag + octets[parent.content : parent.content_end]
    return before + content + octets[parent.content_end :]
