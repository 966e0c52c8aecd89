"""A list before it is started: whatever the file is, what is read of it can be chosen.

By the clock of the machine: a list that is read again comes from threads and from the reader's process.
"""

import re
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest

from mailprobe.api.pages.dashboard.frame import HOME
from mailprobe.api.results.list_reading import decode_reading
from mailprobe.bench.lab.workbooks import row, sheet, text, workbook
from tests.api.lists.test_lists import open_list_shop
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import HttpAnswer

ANN, BOB = "ann@shop.test", "bob@shop.test"


def words_of(got: HttpAnswer) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", got.octets.decode())))


@dataclass
class Survey:
    """A file that was sent, and what its page has."""

    visitor: PageClient
    path: str
    page: str

    @property
    def words(self) -> str:
        return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.page)))

    def chosen(self, name: str) -> str:
        """What is selected in a choice."""
        found = re.search(rf'<select name="{name}".*?</select>', self.page, re.DOTALL)
        assert found is not None, name
        selected = re.search(r'value="([^"]*)" selected>', found[0])
        assert selected is not None, found[0]
        return unescape(selected[1])

    @property
    def ticked(self) -> list[str]:
        return re.findall(r'name="column-\d+" value="(\d+)" checked', self.page)

    @property
    def cells(self) -> list[str]:
        """The cells of the first rows."""
        table = self.page.partition('class="preview"')[2].partition("<tbody")[2]
        return [unescape(each) for each in re.findall(r"<td[^>]*>(.*?)</td>", table)]

    async def read_again(self, **chosen: str) -> "Survey":
        fields = {f"column-{each}": each for each in self.ticked}
        for name in ("encoding", "delimiter"):
            if f'<select name="{name}"' in self.page:
                fields[name] = self.chosen(name)
        fields |= {name.replace("_", "-"): value for name, value in chosen.items()}
        got = await self.visitor.post(f"{self.path}/column", fields)
        if got.status == 303:
            path = got.headers["location"].removeprefix(HOME)
            assert (await self.visitor.get(self.path)).status == 404  # the one before is gone
            got = await self.visitor.get(path)
            return Survey(self.visitor, path, got.octets.decode())
        return Survey(self.visitor, self.path, got.octets.decode())


async def send(visitor: PageClient, octets: bytes, query: str = "") -> HttpAnswer:
    await visitor.get("/lists")
    sent = visitor.sent({
        "content-type": "application/octet-stream", "x-csrf-token": visitor.csrf,
        "origin": "https://api.test",
    })  # fmt: skip
    return await visitor.shop.request(
        "POST", f"{HOME}/lists?name=people&recheck=0{query}", octets=octets, key=None, headers=sent
    )


async def surveyed(visitor: PageClient, octets: bytes, query: str = "") -> Survey:
    got = await send(visitor, octets, query)
    assert got.status == 201, words_of(got)
    path = got.headers["location"].removeprefix(HOME)
    return Survey(visitor, path, (await visitor.get(path)).octets.decode())


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-8", "Zo\u00eb"), ("utf-8-sig", "Zo\u00eb"), ("utf-16", "Zo\u00eb"), ("utf-16-le", "Zoe"),
        ("cp1252", "Laetitia Ren\u00e9e C\u00f4t\u00e9, Fran\u00e7oise M\u00fcller"),
        ("gb18030", "\u738b\u5c0f\u660e\u5728\u5317\u4eac\u5de5\u4f5c\uff0c\u674e\u534e\u5728\u4e0a\u6d77"),
        ("cp932", "\u7530\u4e2d\u592a\u90ce\u306f\u6771\u4eac\u306b\u4f4f\u3093\u3067\u3044\u307e\u3059"),
        ("cp1251", "\u0418\u0432\u0430\u043d \u041f\u0435\u0442\u0440\u043e\u0432 \u0438\u0437 \u041c\u043e\u0441\u043a\u0432\u044b"),
    ],
)  # fmt: skip
async def test_text_of_any_encoding_is_read_and_another_one_can_be_chosen(
    encoding: str, name: str
) -> None:
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        content = f"name;email\r\n{name};{ANN}\r\n{name};{BOB}\r\n"
        found = await surveyed(visitor, content.encode(encoding))
        said = {"utf-8-sig": "utf-8", "utf-16-le": "utf-16"}.get(encoding, encoding)
        assert (found.chosen("encoding"), found.chosen("delimiter")) == (said, ";")
        assert (found.cells, found.ticked) == ([name, ANN, name, BOB], ["2"])
        wrong = await found.read_again(encoding="cp1256" if "16" not in encoding else "utf-8")
        right = await wrong.read_again(encoding=said)
        assert (right.cells, right.ticked) == ([name, ANN, name, BOB], ["2"])
        assert right.chosen("encoding") == said


async def test_letters_that_cannot_be_read_are_said() -> None:
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        octets = f"email,n\n{ANN},Zo\u00eb\n{ANN},Zo\u00eb\nx@shop.test,".encode() + b"Ren\xe9\n"
        found = await surveyed(visitor, octets)
        assert "Some letters could not be read" in found.words
        refused = await found.read_again(encoding="cp1252")
        assert "Send it again, with its encoding among the options." in refused.words
        again = await surveyed(visitor, octets, "&encoding=cp1252")
        assert again.cells[-1] == "Ren\u00e9"


async def test_other_columns_are_chosen_of_letters_that_cannot_be_read() -> None:
    async with open_list_shop() as shop:
        for encoding, octets in (
            ("cp1252", b"Zo\xeb M\xfcller \x81\x9d"),
            ("cp1251", "\u0418\u0432\u0430\u043d".encode("cp1251") + b"\x98@"),
            ("utf-8", "Zo\u00eb".encode() + b"\xff"),
        ):
            found = await surveyed(
                await signed_in(shop),
                f"email,second,name\n{ANN},{BOB},".encode() + octets + b"\n",
                f"&encoding={encoding}",
            )
            both = await found.read_again(column_2="2")
            assert (both.ticked, both.cells) == (["1", "2"], found.cells), encoding
            assert both.chosen("encoding") == encoding
            assert "\N{REPLACEMENT CHARACTER}" in both.cells[2]


@pytest.mark.parametrize(
    "file",
    [
        f"{ANN}\n{BOB}\n",
        f"E-Mail\n{ANN}\n{BOB}\n",
        f"{ANN};x\n{BOB};y\n",
        f"Dear Clara,\nwrite to {ANN} or\n<{BOB}>, please.\nThank you,\nVera\n",
        f'{{"name":"Ann","mail":"{ANN}"}}\n{{"name":"Bob","mail":"{BOB}"}}\n',
        f"<html><body><table><tr><td>email<tr><td>{ANN}<tr><td>{BOB}</table></body></html>",
    ],
    ids=["lines", "one column", "no header", "prose", "objects", "a web page"],
)
async def test_a_file_of_any_kind_is_read_again_as_it_was(file: str) -> None:
    async with open_list_shop() as shop:
        found = await surveyed(await signed_in(shop), file.encode())
        again = found
        for _ in range(2):
            again = await again.read_again()
            assert "was not read" not in again.words
            asked = [
                each.words.partition("What will be asked")[2].partition("Left in")[0]
                for each in (found, again)
            ]
            assert (again.cells, again.ticked, asked[1]) == (found.cells, found.ticked, asked[0])


async def test_another_separator_is_chosen() -> None:
    async with open_list_shop() as shop:
        found = await surveyed(await signed_in(shop), f"email;a,b\n{ANN};1,2\n{BOB};3,4\n".encode())
        assert (found.chosen("delimiter"), found.cells[:2]) == (";", [ANN, "1,2"])
        by_comma = await found.read_again(delimiter=",")
        assert (by_comma.chosen("delimiter"), by_comma.cells[:2]) == (",", [f"{ANN};1", "2"])
        back = await by_comma.read_again(delimiter=";")
        assert (back.cells[:2], back.ticked) == ([ANN, "1,2"], ["1"])


async def test_several_columns_are_a_choice_and_no_error() -> None:
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        found = await surveyed(
            visitor, f"Name,First,Second\nAnn,{ANN},{BOB}\nBob,x@shop.test,y@shop.test\n".encode()
        )
        assert (found.ticked, "Verify 2 addresses" in found.words) == (["2"], True)
        both = await found.read_again(column_3="3")
        assert (both.ticked, "Verify 4 addresses" in both.words) == (["2", "3"], True)
        google = await surveyed(
            visitor,
            b"First Name,E-mail 1 - Label,E-mail 1 - Value,E-mail 2 - Label,E-mail 2 - Value\n"
            + f"Ann,* Work,{ANN},Home,{BOB}\nBob,* Work,{BOB},Home,c@shop.test\n".encode(),
        )
        # The second has a usual name, so it is verified too.
        assert (google.ticked, "Verify 3 addresses" in google.words) == (["3", "5"], True)


async def test_many_columns_are_ticked_together() -> None:
    async with open_list_shop() as shop:
        names = ",".join(f"email {n}" for n in range(20))
        cells = ",".join(f"a{n}@shop.test" for n in range(20))
        found = await surveyed(await signed_in(shop), f"{names}\n{cells}\n".encode())
        every = await found.read_again(**{f"column_{n + 1}": str(n + 1) for n in range(20)})
        assert "Verify 20 addresses" in every.words


async def test_no_more_columns_are_ticked_than_can_be_read_together() -> None:
    async with open_list_shop() as shop:
        names = ",".join(f"email {n}" for n in range(40))
        cells = ",".join(f"a{n}@shop.test" for n in range(40))
        found = await surveyed(await signed_in(shop), f"email,{names}\n{ANN},{cells}\n".encode())
        assert (len(found.ticked), "Verify 20 addresses" in found.words) == (20, True)
        again = await found.read_again()
        assert "Verify 20 addresses" in again.words


async def test_another_sheet_is_read_in_place_of_the_first() -> None:
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)

        def one(address: str) -> str:
            return sheet(row(1, text("A1", "email")), row(2, text("A2", address)))

        octets = workbook({"First": one(ANN), "Second": one(BOB)})
        found = await surveyed(visitor, octets)
        assert (found.cells, "“First” was read." in found.words) == ([ANN], True)
        assert "<option>Second</option>" in found.page
        instead = found.path.rpartition("/")[2]
        second = await surveyed(visitor, octets, f"&sheet=Second&instead={instead}")
        assert second.cells == [BOB]
        assert (await visitor.get(found.path)).status == 404
        # started in another tab: what was verified stays
        assert (await visitor.post(f"{second.path}/resume")).status == 303
        started = second.path.rpartition("/")[2]
        await surveyed(visitor, octets, f"&sheet=First&instead={started}")
        assert (await visitor.get(second.path)).status == 200


async def test_a_sheet_with_an_endless_title_is_not_offered() -> None:
    """The titles are stored with the list: a file of 19 KB would have a MiB of them."""
    async with open_list_shop() as shop:
        one = sheet(row(1, text("A1", "email")), row(2, text("A2", ANN)))
        titles = [*(f"{number} {'x' * 18_000}" for number in range(49)), "Last"]
        octets = workbook(dict.fromkeys(titles, one))
        found = await surveyed(await signed_in(shop), octets)
        stored = await shop.store.stored_list(found.path.rpartition("/")[2])
        assert stored is not None
        reading = decode_reading(stored.reading)
        assert reading is not None
        assert (reading.sheet, reading.sheets) == (titles[0][:255], ["Last"])


@pytest.mark.parametrize(
    ("pasted", "addresses"),
    [
        (f"Ann Lee <{ANN}>, {BOB}\nmailto:carol@shop.test\n", 3),
        (f'"Lee, Ann" ({ANN}); [{BOB}]', 2),
        (f"To: Ann <{ANN}>,\n Bob <{BOB}>\nSubject: Hello\n\nDear all,\nas you know, it is late.\n", 2),
        (f"Dear Clara,\nwrite to {ANN} or\n<{BOB}>, please.\nThank you,\nVera\n", 2),
        (f"Ann\t{ANN}\nBob\t{BOB}\n", 2),
    ],
    ids=["recipients", "brackets", "a mail", "prose", "cells of a sheet"],
)  # fmt: skip
async def test_any_text_can_be_pasted(pasted: str, addresses: int) -> None:
    async with open_list_shop() as shop:
        found = await surveyed(await signed_in(shop), pasted.encode())
        assert f"Verify {addresses} addresses" in found.words


async def test_doubtful_cells_are_counted_beside_what_is_verified() -> None:
    """They get a suggestion and no question, so the sum alone would promise too much."""
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        found = await surveyed(visitor, f"email\n{ANN}\ncarol (at) shop.test\n".encode())
        assert "Addresses to verify 2 Of these doubtful: no mail host is asked 1" in found.words
        assert (
            "doubtful: no mail" not in (await surveyed(visitor, f"email\n{ANN}\n".encode())).words
        )


async def test_a_file_that_is_no_list_is_refused_with_the_next_step() -> None:
    async with open_list_shop() as shop:
        visitor: Any = await signed_in(shop)
        for octets, words in (
            (b"%PDF-1.7\nx", "is a PDF; save the list as CSV or XLSX"),
            (b"a,b\nx,1\n", "has no column of addresses"),
            (b"", "a list has one address a row"),
        ):
            got = await send(visitor, octets)
            assert (got.status, words in words_of(got)) == (400, True), words_of(got)
