"""The shared strings of a workbook (ECMA-376 18.4), and how text is escaped in XML."""

import re
from array import array
from typing import IO

from ..bounds import CELL_CHARACTERS_MAX
from .markup import DEPTH_MAX, fed_pieces, local_name, open_parser

STRINGS_OCTETS_MAX = 1 << 26  # 64 MiB of memory: two million addresses
NUMBER_OCTETS = 8  # of a string's place

ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
SURROGATES = re.compile("[\ud800-\udfff]")


def unescaped(text: str) -> str:
    """Decode a string's escapes: `_x000D_` stands for a character that XML cannot hold.

    Two escapes may be one character in UTF-16. Half of one stays the escape that it is, which
    is better than a character that is lost.
    """
    if "_x" not in text:
        return text
    text = ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    if SURROGATES.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return SURROGATES.sub(lambda found: f"_x{ord(found[0]):04X}_", joined)


class SharedStrings:
    """The strings by number, held as UTF-8 in one piece: an object for each costs three times as much."""

    def __init__(self) -> None:
        self._octets = bytearray()
        self._ends = array("Q", [0])

    def __getitem__(self, number: int) -> str:
        if number < 0:
            raise IndexError(number)
        return self._octets[self._ends[number] : self._ends[number + 1]].decode()

    def read(self, stream: IO[bytes]) -> bool:
        """Read sharedStrings.xml as a stream; False if it costs more memory than is allowed."""
        parser = open_parser()
        text: list[str] = []
        hidden = 0  # depth within phonetic text, which is not part of a string
        depth = characters = 0

        def add(piece: str) -> None:
            nonlocal characters
            characters += len(piece)
            if characters > 2 * CELL_CHARACTERS_MAX:  # escapes are longer than their characters
                raise ValueError("a string without end")
            text.append(piece)

        def start(name: str, _: object) -> None:
            nonlocal hidden, depth
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError("elements nest too deep")
            local = local_name(name)
            if local == "rPh":
                hidden += 1
            elif local == "t" and not hidden:
                parser.CharacterDataHandler = add

        def end(name: str) -> None:
            nonlocal hidden, depth, characters
            depth -= 1
            local = local_name(name)
            if local == "t":
                parser.CharacterDataHandler = None
            elif local == "rPh":
                hidden -= 1
            elif local == "si":
                self._octets += unescaped("".join(text)).encode()
                self._ends.append(len(self._octets))
                text.clear()
                characters = 0

        parser.StartElementHandler = start
        parser.EndElementHandler = end
        for _ in fed_pieces(parser, stream):
            if len(self._octets) + NUMBER_OCTETS * len(self._ends) > STRINGS_OCTETS_MAX:
                return False
        return True
