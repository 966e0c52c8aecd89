"""The form with a file: its token comes first, and a hostile one costs little."""

import pytest

from mailprobe.api.pages.dashboard.multipart import (
    FIELD_OCTETS_MAX,
    NoToken,
    Part,
    read_parts,
)
from mailprobe.api.refusals import InvalidRequest, PayloadTooLarge
from mailprobe.api.serve import create_app
from tests.api.lists.test_lists import open_list_shop
from tests.api.pages.test_dashboard import HOME, signed_in

OCTETS_MAX = 100_000
PIECE_OCTETS = 2_000
END = b"--edge--\r\n"
BOMB = b"x" * 1_000_000


def part(name: str, octets: bytes, file_name: str | None = None, head: bytes = b"") -> bytes:
    named = "" if file_name is None else f'; filename="{file_name}"'
    fields = f'content-disposition: form-data; name="{name}"{named}\r\n'.encode() + head
    return b"--edge\r\n" + fields + b"\r\n" + octets + b"\r\n"


TOKEN = part("csrf", b"right")


class Body:
    """A body that comes in pieces; it counts the octets that were taken."""

    def __init__(self, octets: bytes, piece: int = 65_536) -> None:
        self.pieces = [octets[at : at + piece] for at in range(0, len(octets), piece)]
        self.taken = 0

    async def receive(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        self.taken += len(piece)
        return piece


def is_right(first: Part) -> bool:
    return (first.name, first.octets) == ("csrf", b"right")


async def read(body: Body, boundary: str = "edge") -> list[tuple[str, str | None, bytes]]:
    parts = await read_parts(body.receive, boundary, is_right, OCTETS_MAX)
    return [(each.name, each.file_name, bytes(each.octets)) for each in parts]


@pytest.mark.parametrize("piece", [1, 7, 1000, 65_536])
async def test_a_form_is_read_in_whatever_pieces_it_comes(piece):
    file = b"email\r\nann@a.test\r\n" * 50
    body = TOKEN + part("file", file, "a.csv") + part("column", "größe".encode()) + END
    assert await read(Body(body, piece)) == [
        ("csrf", None, b"right"), ("file", "a.csv", file), ("column", None, "größe".encode()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "first", [part("csrf", b"wrong"), part("file", b"x", "csrf"), part("other", b"right")]
)
async def test_without_the_token_at_its_start_no_more_of_the_form_is_read(first):
    body = Body(first + part("file", BOMB, "a.csv") + END)
    with pytest.raises(NoToken):
        await read(body)
    assert body.taken <= 65_536


HOSTILE: dict[str, tuple[bytes, type[Exception]]] = {
    "a head without an end": (TOKEN + b"--edge\r\nx: " + BOMB, InvalidRequest),
    "a long head": (TOKEN + part("file", b"", "a.csv", b"x: y\r\n" * 20_000) + END, InvalidRequest),
    "no boundary": (BOMB, InvalidRequest),
    "a part without a name": (TOKEN + b"--edge\r\n\r\nx" + END, InvalidRequest),
    "an incomplete form": (TOKEN + part("file", b"x", "a.csv"), InvalidRequest),
    "a large field": (TOKEN + part("column", BOMB) + END, PayloadTooLarge),
    "a large file": (TOKEN + part("file", BOMB, "a.csv") + END, PayloadTooLarge),
    "many parts": (TOKEN + part("a", b"") * 10_000 + END, InvalidRequest),
    "a file as the token": (part("csrf", BOMB, "a.csv") + END, NoToken),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_form_is_refused_before_much_of_it_is_read(name):
    """A head of 2 MB held the event loop while it was parsed."""
    octets, error = HOSTILE[name]
    body = Body(octets, PIECE_OCTETS)
    with pytest.raises(error):
        await read(body)
    most = OCTETS_MAX if name == "a large file" else FIELD_OCTETS_MAX
    assert body.taken <= most + PIECE_OCTETS


@pytest.mark.parametrize("boundary", ["", "x" * 71, "größe"])
async def test_a_boundary_is_short_and_ascii(boundary):
    with pytest.raises(InvalidRequest):
        await read(Body(TOKEN + END), boundary)


async def test_a_form_with_a_file_is_read_on_the_page_of_lists_alone(autojump_clock):
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        shop.app = create_app(shop.service)
        headers = visitor.sent(
            {"content-type": "multipart/form-data; boundary=edge", "origin": "https://api.test"}
        )
        token = part("csrf", visitor.csrf.encode())
        stale = part("csrf", b"0" * len(visitor.csrf))

        async def status(path: str, octets: bytes) -> int:
            got = await shop.request("POST", HOME + path, octets=octets, key=None, headers=headers)
            return got.status

        small = part("file", b"email\nann@friendly.test\n", "a.csv") + END
        large = part("file", b"email\nann@friendly.test\n" + 3 * BOMB, "a.csv") + END
        assert await status("/lists", token + small) == 303
        assert await status("/lists", stale + small) == 403
        assert await status("/lists", token + large) == 413
        assert await status("/keys", token + part("label", b"new") + END) == 403
