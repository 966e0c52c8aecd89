"""List files in the forms that occur in practice, each with its expected result.

A case has the file's name and octets, the cells of each row (the header first, if there
is one) and the addresses, or the text of its refusal. `reader` is how Python's csv reads
the output; None if the output is not CSV. `skipped` counts the lines above the header,
which the output repeats unchanged.
"""

from dataclasses import dataclass, field
from typing import Any

A, B, C = "ann@shop.test", "bob@shop.test", "cy@shop.test"


@dataclass(frozen=True)
class Case:
    file: str
    octets: bytes
    rows: list[list[str]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    header: bool = True
    refusal: str = ""
    said: dict[str, Any] = field(default_factory=dict)
    reader: dict[str, Any] | None = field(default_factory=dict)
    skipped: int = 0


def table(
    file: str, text: str | bytes, rows: list[list[str]], addresses: list[str], **more: Any
) -> Case:
    return Case(file, text.encode() if isinstance(text, str) else text, rows, addresses, **more)


def refused(file: str, text: str | bytes, words: str, **said: Any) -> Case:
    octets = text.encode() if isinstance(text, str) else text
    return Case(file, octets, refusal=words, said=said)


H = ["n", "email"]
SEMI = {"delimiter": ";"}
TAB = {"delimiter": "\t"}
BARE_TAB = {"delimiter": "\t", "quoting": 3}
TWO = [H, ["1", A], ["2", B]]
AB = [A, B]

CORPUS: dict[str, Case] = {
    # Line ends
    "LF": table("a.csv", f"n,email\n1,{A}\n2,{B}\n", TWO, AB),
    "CRLF": table("a.csv", f"n,email\r\n1,{A}\r\n2,{B}\r\n", TWO, AB),
    "CR": table("a.csv", f"n,email\r1,{A}\r2,{B}\r", TWO, AB),
    "LF and CRLF mixed": table("a.csv", f"n,email\n1,{A}\r\n2,{B}\n", TWO, AB),
    "all three mixed": table("a.csv", f"n,email\n1,{A}\r2,{B}\r\n", TWO, AB),
    "no end at the end": table("a.csv", f"n,email\n1,{A}\n2,{B}", TWO, AB),
    "CR within a row": refused(
        "a.csv", f"n,email\n1\r,{A}\n2,{B}\n", "line 2: a carriage return stands alone"
    ),
    "line ends within quotes": table(
        "a.csv", f'n,email\r\n"1\n2\r3\r\n4",{A}\r\n', [H, ["1\n2\r3\r\n4", A]], [A]
    ),
    # Quotes
    "all quoted": table("a.csv", f'"n","email"\n"1","{A}"\n"2","{B}"\n', TWO, AB),
    "doubled quotes": table("a.csv", f'n,email\n"say ""hi"", ok",{A}\n',
                            [H, ['say "hi", ok', A]], [A]),
    "a quote within a bare cell": table("a.csv", f'n,email\n5" pipe,{A}\n2,{B}\n',
                                        [H, ['5" pipe', A], ["2", B]], AB),
    "escaped quotes": table("a.csv", f'n,email\n"say \\"hi\\", ok",{A}\n2,{B}\n',
                            [H, ['say "hi", ok', A], ["2", B]], AB,
                            reader={"escapechar": "\\"}),
    "a quoted cell that ends in a backslash": table(
        "a.csv", f'n,email\n"C:\\",{A}\n2,{B}\n', [H, ["C:\\", A], ["2", B]], AB),
    "escaped delimiters without quotes": table(
        "a.csv", f"n,email\nDoe\\, Ann,{A}\nRoe\\, Bob,{B}\n",
        [H, ["Doe, Ann", A], ["Roe, Bob", B]], AB, reader={"quoting": 3, "escapechar": "\\"}),
    "escaped line end without quotes": table(
        "a.csv", f"n,email\n1\\\n2,{A}\n3,{B}\n", [H, ["1\n2", A], ["3", B]], AB,
        reader={"quoting": 3, "escapechar": "\\"}),
    "a backslash in a cell of its own": table(
        "a.csv", f'"n","m","email"\n"\\","","{A}"\n"\\","\\","{B}"\n',
        [["n", "m", "email"], ["\\", "", A], ["\\", "\\", B]], AB),
    "a path that ends a line": table(
        "a.csv", f"email,n\n{A},C:\\\n{B},x\n", [["email", "n"], [A, "C:\\"], [B, "x"]], AB),
    "an escaped quote, then a line end within quotes": table(
        "a.csv", f'email,n\n{A},"\\""\n{B},"\n"\n', [["email", "n"], [A, '"'], [B, "\n"]], AB,
        reader={"escapechar": "\\"}),
    "escaped in some cells, doubled in others": table(
        "a.csv", f'n,email\n"say \\"hi\\", ok",{A}\n"say ""hi"", ok",{B}\n',
        [H, ['say "hi", ok', A], ['say "hi", ok', B]], AB, reader={"escapechar": "\\"}),
    "a backslash that may be either": refused(
        "a.csv", f"Doe\\, Ann,{A}\nRoe\\, Bob,{B}\n", "line 1: a backslash there may be text or an"),
    "a backslash that is text by word": table(
        "a.csv", f"Doe\\, Ann,{A}\nRoe\\, Bob,{B}\n",
        [["Doe\\", " Ann", A], ["Roe\\", " Bob", B]], AB, header=False,
        said={"backslash": "text"}),
    "a backslash that escapes by word": table(
        "a.csv", f"Doe\\, Ann,{A}\nRoe\\, Bob,{B}\n", [["Doe, Ann", A], ["Roe, Bob", B]], AB,
        header=False, said={"backslash": "escape"}, reader={"escapechar": "\\"}),
    "a backslash in rows of different widths": refused(
        "a.csv", f"n,email\n1\nDoe\\, Ann,{A}\n", "line 3: a backslash there may be text or an"),
    "a quote after a space that may be either": refused(
        "a.csv", f'n,x,email\n1, "2,\n3, 4",{A}\n', "line 2: a quote there may open"),
    "a quote after a space that opens nothing": table(
        "a.csv", f'n,x,email\n1, "2,{A}\n3, 4","{B}"\n',
        [["n", "x", "email"], ["1", ' "2', A], ["3", ' 4"', B]], AB),
    "quotes in a TSV that may be either": refused(
        "a.tsv", f'n\tc\temail\n1\t"a\t\n2\tb"\t{A}\n', "line 2: a quote there may open"),
    "quotes in a TSV that are quotes by word": table(
        "a.tsv", f'n\tc\temail\n1\t"a\t\n2\tb"\t{A}\n',
        [["n", "c", "email"], ["1", "a\t\n2\tb", A]], [A], said={"quotes": True}, reader=TAB),
    "lines like rows in a cell, by word": table(
        "a.csv", f'n,email,c\n1,{A},"x\n2,{B},y"\n',
        [["n", "email", "c"], ["1", A, f"x\n2,{B},y"]], [A], said={"quotes": True}),
    "stray quotes over three rows, one without an address": refused(
        "a.csv", f'n,email,c\n1,{A},"x\n2,,z\n3,{B},y"\n', "line 2: a quote opens"),
    "spaces after delimiters": table("a.csv", f'n, email\n"Doe, Ann", "{A}"\n"Roe, Bob", "{B}"\n',
                                     [H, ["Doe, Ann", A], ["Roe, Bob", B]], AB,
                                     reader={"skipinitialspace": True}),
    "stray quote": refused(
        "a.csv", f'n,c,email\n1,a,{A}\n3,"unclosed,{B}\n4,"fine",{C}\n', "line 3: a quote opens"),
    "stray quote, never closed": refused(
        "a.csv", f'n,email\n1,"{A}\n2,{B}\n', "line 2: a quote opens"),
    "two stray quotes that fit each other": refused(
        "a.csv", f'n,email,c\n1,{A},"x\n2,{B},y"\n', "line 2: a quote opens"),
    "text after a closing quote": refused(
        "a.csv", f'n,email\n"Ann" Lee,{A}\n', "line 2: a quote opens"),
    "quotes and escapes by word": table(
        "a.csv", f'n,email\n"Ann\\, Lee,{A}\n', [H, ['"Ann, Lee', A]], [A],
        said={"quotes": False, "backslash": "escape"}, reader={"quoting": 3, "escapechar": "\\"}),
    "quotes are text by word": table(
        "a.csv", f'n,email\n"Ann" Lee,{A}\n"x,{B}\n', [H, ['"Ann" Lee', A], ['"x', B]], AB,
        said={"quotes": False}, reader={"quoting": 3}),
    "TSV from a database": table(
        "a.tsv", f'n\temail\n"stray\t{A}\nbar"\t{B}\n', [H, ['"stray', A], ['bar"', B]], AB,
        reader=BARE_TAB),
    "TSV from a database, never closed": table(
        "a.tsv", f'n\temail\n5" and "\t{A}\n"6\t{B}\n', [H, ['5" and "', A], ['"6', B]], AB,
        reader=BARE_TAB),
    "TSV with quotes and a line end": table(
        "a.tsv", f'n\temail\n"1\n\t2"\t{A}\n2\t{B}\n', [H, ["1\n\t2", A], ["2", B]], AB,
        reader=TAB),
    "TSV, quoted cells and a stray quote": refused(
        "a.tsv", f'n\tc\temail\n"1"\tx\t{A}\n2\t"stray\t{B}\n', "line 3: a quote opens"),
    # Delimiters and shapes
    "semicolons, decimal commas": table(
        "a.csv", f"n;email;p\n1;{A};1,50\n2;{B};2,50\n",
        [["n", "email", "p"], ["1", A, "1,50"], ["2", B, "2,50"]], AB, reader=SEMI),
    "a comma in each name": table(
        "a.csv", f"{A};Doe, Ann\n{B};Roe, Bob\n", [[A, "Doe, Ann"], [B, "Roe, Bob"]], AB,
        header=False, reader=SEMI),
    "pipes": table("a.txt", f"n|email\n1|{A}\n2|{B}\n", TWO, AB, reader={"delimiter": "|"}),
    "tabs in a .csv": table("a.csv", f"n\temail\n1\t{A}\n2\t{B}\n", TWO, AB, reader=TAB),
    "commas in a .tsv": table("a.tsv", f"n,email\n1,{A}\n2,{B}\n", TWO, AB, reader={}),
    "sep line": table("a.csv", f"sep=;\r\nn;email\r\n1;{A}\r\n2;{B}\r\n", TWO, AB, reader=SEMI,
                      skipped=1),
    "delimiters at the end of each row": table(
        "a.csv", f"n,email,\n1,{A},\n2,{B},\n",
        [["n", "email", ""], ["1", A, ""], ["2", B, ""]], AB),
    "rows of different widths": table(
        "a.csv", f"n,email\n1\n2,{A},x,y\n3,{B}\n",
        [["n", "email", "column_3", "column_4"], ["1", "", "", ""], ["2", A, "x", "y"],
         ["3", B, "", ""]], ["", A, B]),
    "blank lines between": table("a.csv", f"n,email\n\n1,{A}\n\n\n2,{B}\n",
                                 [H, ["", ""], ["1", A], ["", ""], ["", ""], ["2", B]],
                                 ["", A, "", "", B]),
    "spaces around names and addresses": table(
        "a.csv", f" n , email \n1 ,  {A} \n", [[" n ", " email "], ["1 ", f"  {A} "]], [A]),
    # Encodings
    "UTF-8 with a mark": table("a.csv", f"n,email\nJürgen,{A}\n".encode("utf-8-sig"),
                               [H, ["Jürgen", A]], [A]),
    "UTF-16 with a mark": table("a.csv", f"n,email\nJürgen,{A}\n".encode("utf-16"),
                                [H, ["Jürgen", A]], [A]),
    "UTF-16 without": table("a.csv", f"n,email\nJürgen,{A}\n".encode("utf-16-le"),
                            [H, ["Jürgen", A]], [A]),
    "UTF-32": table("a.csv", f"n,email\nJürgen,{A}\n".encode("utf-32"),
                    [H, ["Jürgen", A]], [A]),
    "Windows, Western": table("a.csv", f"n,email\nRené “Jürgen” Müller,{A}\n".encode("cp1252"),
                              [H, ["René “Jürgen” Müller", A]], [A]),
    "Windows, Central European": table(
        "a.csv", f"n,email\nŁukasz Wiśniewski,{A}\nMichał Żak,{B}\n".encode("cp1250"),
        [H, ["Łukasz Wiśniewski", A], ["Michał Żak", B]], AB),
    "Windows, Czech by its addresses": table(
        "a.csv", "n,email\nJiří Dvořák,a@shop.cz\nTomáš Němec,b@shop.cz\n".encode("cp1250"),
        [H, ["Jiří Dvořák", "a@shop.cz"], ["Tomáš Němec", "b@shop.cz"]],
        ["a@shop.cz", "b@shop.cz"]),
    "Windows, Cyrillic": table(
        "a.csv", f"имя,почта\nИван Петров,{A}\nСергей Иванов,{B}\n".encode("cp1251"),
        [["имя", "почта"], ["Иван Петров", A], ["Сергей Иванов", B]], AB),
    "Shift-JIS": table(
        "a.csv", f"名前,メール\n山田太郎,{A}\n表 十,{B}\n".encode("shift_jis"),
        [["名前", "メール"], ["山田太郎", A], ["表 十", B]], AB),
    "EUC-JP": table("a.csv", f"名前,メール\n山田太郎,{A}\n鈴木花子,{B}\n".encode("euc_jp"),
                    [["名前", "メール"], ["山田太郎", A], ["鈴木花子", B]], AB),
    "GB 18030": table("a.csv", f"姓名,邮箱\n王小明,{A}\n李雷,{B}\n".encode("gb18030"),
                      [["姓名", "邮箱"], ["王小明", A], ["李雷", B]], AB),
    "Big5": table("a.csv", f"姓名,email\n王小明,{A}\n許功蓋,{B}\n".encode("big5"),
                  [["姓名", "email"], ["王小明", A], ["許功蓋", B]], AB),
    "Korean": table("a.csv", f"이름,이메일\n김철수,{A}\n이영희,{B}\n".encode("cp949"),
                    [["이름", "이메일"], ["김철수", A], ["이영희", B]], AB),
    "an encoding by its name": table(
        "a.csv", f"n,email\nJürgen,{A}\n".encode("cp850"), [H, ["Jürgen", A]], [A],
        said={"encoding": "cp850"}),
    "UTF-8 but for one octet": refused(
        "a.csv", f"n,email\nJürgen,{A}\nRené,{B}\n".encode() + b"J\xfcrgen,c@shop.test\n",
        "line 4: is not UTF-8"),
    "UTF-8 but for one octet, replaced": table(
        "a.csv", f"n,email\nJürgen,{A}\n".encode() + b"J\xfcrgen,bob@shop.test\n",
        [H, ["Jürgen", A], ["J�rgen", B]], AB, said={"errors": "replace"}),
    "Windows, and one line in UTF-8": refused(
        "a.csv", b"n,email\n" + "Jürgen,x@shop.test\n".encode("cp1252") * 9
        + "René,y@shop.test\n".encode(),
        "line 11: is UTF-8, and other lines are not"),
    "zero octets": refused("a.csv", f"n,email\n1,{A}\n".encode() * 5000 + b"\0" * 9 + b"\n",
                           "line 10001: holds zero bytes"),
    "an unknown encoding": refused("a.csv", b"n,email\n" + bytes(range(128, 256)) + b",ann@shop.test\n",
                                   "cannot be determined"),
    "cut in a character": refused("a.csv", f"n,email\nJürgen,{A}\nü".encode()[:-1],
                                  "line 3: is not UTF-8"),
    "a mark within the file": table(
        "a.csv", f"\ufeffemail,n\n{A},1\n\ufeff{B},2\n",
        [["email", "n"], [A, "1"], [f"\ufeff{B}", "2"]], AB),
    "spaces without width": table(
        "a.csv", f"n,email\n1,\u200b{A} \u200b\n", [H, ["1", f"\u200b{A} \u200b"]], [A]),
    "UTF-16 with an octet more": refused(
        "a.csv", f"n,email\n1,{A}\n".encode("utf-16") + b"x", "line 3 or soon after"),
    "half a character in UTF-16": refused(
        "a.csv", b"\xff\xfe" + f"n,email\n1,{A}\n".encode("utf-16-le") + b"\0\xd8x\0",
        "cannot be decoded"),
    "UTF-8 but for one octet, lines that end in CR": refused(
        "a.csv", f"n,email\rJürgen,{A}\rRené,{B}\r".encode() + b"J\xfcrgen,c@shop.test\r",
        "line 4: is not UTF-8"),
    "control characters that end no line": table(
        "a.csv", f"n,email\na\x0bb\x0cc\x85d\u2028e\x1cf,{A}\n",
        [H, ["a\x0bb\x0cc\x85d\u2028e\x1cf", A]], [A]),
    # Headers
    "an example in the header": table("a.csv", f"n,email (you@x.com)\n1,{A}\n",
                                      [["n", "email (you@x.com)"], ["1", A]], [A]),
    "headless": table("a.csv", f"1,{A}\n2,{B}\n", [["1", A], ["2", B]], AB, header=False),
    "headless, first address missing": table(
        "a.csv", f"Ann,\nBob,{B}\nCy,{C}\n", [["Ann", ""], ["Bob", B], ["Cy", C]], ["", B, C],
        header=False),
    "headless, first cell blank": table(
        "a.csv", f",{A}\nBob,{B}\n", [["", A], ["Bob", B]], AB, header=False),
    "headless, blank line first": table(
        "a.csv", f"\n1,{A}\n", [["", ""], ["1", A]], ["", A], header=False),
    "headless, a number is not a name": table(
        "a.csv", f"2,{A}\n3,{B}\n", [["2", A], ["3", B]], AB, header=False,
        said={"column": "2"}),
    "title": table("a.csv", f"Our customers\nn,email\n1,{A}\n2,{B}\n", TWO, AB, skipped=1),
    "title of tabs": table("a.csv", f"Report\nn\temail\n1\t{A}\n2\t{B}\n", TWO, AB, reader=TAB, skipped=1),
    "title as a spreadsheet has it": table(
        "a.csv", f"Our customers,\n,\nn,email\n1,{A}\n2,{B}\n", TWO, AB, skipped=2),
    "comment lines": table("a.csv", f"# made by x\n# on Monday\nn,email\n1,{A}\n2,{B}\n",
                           TWO, AB, skipped=2),
    "lines skipped by word": table("a.csv", f"x,y\nz,w\nn,email\n1,{A}\n2,{B}\n", TWO, AB,
                                   said={"skip_lines": 2}, skipped=2),
    "same name twice": table(
        "a.csv", f"email,email\nx,{A}\ny,{B}\n", [["email", "email"], ["x", A], ["y", B]], AB),
    "same name twice, by number": table(
        "a.csv", f"email,email\n{A},{B}\n", [["email", "email"], [A, B]], [B],
        said={"column": "2"}),
    "a column beyond the header": table(
        "a.csv", f"name\n1,{A}\n2,{B}\n", [["name", "column_2"], ["1", A], ["2", B]], AB,
        said={"column": "2"}),
    "a name with spaces": table("a.csv", f"n,e-mail address\n1,{A}\n",
                                [["n", "e-mail address"], ["1", A]], [A]),
    "mailboxes in a column": table(
        "a.csv", f'n,email\n1,"Doe, Ann <{A}>"\n2,Bob <{B}>\n',
        [H, ["1", f"Doe, Ann <{A}>"], ["2", f"Bob <{B}>"]], AB),
    # Other files
    "a long bare cell": refused(
        "a.csv", f"n,email\n{'x' * 1_100_000},{A}\n", "line 2: a cell is longer than"),
    "a long quoted cell": refused(
        "a.csv", f'n,email\n"{"x" * 1_100_000}",{A}\n', "line 2: a cell is longer than"),
    "a quoted cell over many lines": refused(
        "a.csv", f'n,email\n"{("x" * 99 + chr(10)) * 11_000}",{A}\n',
        "line 2: a quote opens a cell that is longer than"),
    "a backslash that ends a list with escapes": refused(
        "a.csv", f'n,email,m\n"say \\"hi\\", x",{A},1\n2,{B},x\\',
        "line 3: a backslash stands at the end of a row"),
    "a backslash that ends a row before CRLF, with escapes": refused(
        "a.csv", f'n,email,m\r\n"say \\"hi\\", x",{A},1\r\n2,{B},x\\\r\n3,{C},y\r\n',
        "line 3: a backslash stands at the end of a row"),
    "a line of many spaces": Case(
        "a.txt", (" " * 30_000 + f"{A}\n{B}\n").encode(), addresses=AB, reader=None),
    "many at signs in brackets": table(
        "a.csv", f"n,email\n1,{A}\n2,<{'@' * 30_000} x>\n",
        [H, ["1", A], ["2", f"<{'@' * 30_000} x>"]], [A, f"<{'@' * 30_000} x>"]),
    "lines that are not addresses": refused(
        "a.txt", f"name Ann\nversion 3.0\nmail {A}\nend\n", "most of its lines are not"),
    "contact cards": Case(
        "a.vcf", f"BEGIN:VCARD\nVERSION:3.0\nFN:Ann Lee\nEMAIL:{A}\nEND:VCARD\n".encode(),
        addresses=[A], reader=None),
    "a dump of a database": refused(
        "a.txt", f"-- MySQL dump 10.13\n--\nINSERT INTO `users` VALUES (1,'{A}');\n", "is a dump of a database"),
    "a web page": refused(
        "a.xls", f"<html>\n<td>email</td>\n<td>{A}</td>\n</html>\n", "most of its lines are not"),
    "a web page on one line": refused(
        "a.xls", f"<html><td>email</td><td>{A}</td></html>\n", "most of its lines are not"),
    "lines under comments": Case(
        "a.txt", f"# one\n# two\n# three\n{A}\n{B}\n".encode(),
        addresses=["# one", "# two", "# three", A, B], reader=None),
    "lines that are not addresses, by word": Case(
        "a.txt", b"Ann\nBob\n", addresses=["Ann", "Bob"], said={"column": "1"}, reader=None),
    "an array over several lines": Case(
        "a.json", f'[\n {{"n": 1,\n  "email":"{A}"}},\r\n{{"email":"{B}"}}]\n'.encode(), addresses=[A, B],
        reader=None),
    "an array in a .ndjson": Case(
        "a.ndjson", f'[{{"id":1.10,"email":"{A}"}},{{"email":"{B}"}}]'.encode(), addresses=[A, B],
        reader=None),
    "an array that is cut": refused(
        "a.json", f'[{{"email":"{A}"}},\n', "is not a whole JSON array"),
    "several addresses in each item": refused(
        "a.json", f'[{{"emails":[{{"value":"{A}"}}]}},{{"emails":[]}}]', "--column (emails.0.value)"),
    "an object over several lines": refused(
        "a.json", f'{{\n "email":"{A}"\n}}\n', "line 1: is not a whole JSON"),
    "objects with a name twice": Case(
        "a.ndjson", f'{{"email":"{A}","email":"{B}"}}\n'.encode(), addresses=[B], reader=None),
    "objects with large numbers": Case(
        "a.ndjson", f'{{"email":"{A}","id":{10**30},"f":1.10,"e":1E2}}\n'.encode(), addresses=[A],
        reader=None),
    "a header alone": refused("a.csv", "n,email\n", "a header and no rows"),
    "formulas": table("a.csv", f"n,email\n=cmd|' /C calc'!A0,{A}\n",
                      [H, ["=cmd|' /C calc'!A0", A]], [A]),
    "lines": Case("a.txt", f"{A}\n\n {B} \n".encode(), addresses=[A, "", B], reader=None),
    "lines of mailboxes": Case(
        "a.txt", f'"Doe, Ann" <{A}>\nRoe, Bob <{B}>\n'.encode(), addresses=AB, reader=None),
    "objects": Case("a.ndjson", f'{{"email":"{A}"}}\n{{"email":null}}\n'.encode(),
                    addresses=[A, ""], reader=None),
    "objects within objects": Case(
        "a.ndjson", f'{{"contact":{{"email":"{A}"}}}}\n{{"contact":null}}\n'.encode(),
        addresses=[A, ""], said={"column": "contact.email"}, reader=None),
    "objects within objects, unsaid": refused(
        "a.ndjson", f'{{"contact":{{"email":"{A}"}}}}\n', "--column (contact.email)"),
    "the field is an object": refused(
        "a.ndjson", f'{{"email":{{"value":"{A}"}}}}\n', "--column (email.value)"),
    "the field is an object later": refused(
        "a.ndjson", f'{{"email":"{B}"}}\n' * 1100 + f'{{"email":["{A}"]}}\n',
        "line 1101: email holds several values"),
    "a number among addresses": Case(
        "a.ndjson", f'{{"email":5}}\n{{"email":"{A}"}}\n'.encode(), addresses=["5", A], reader=None),
    "UTF-16 by a wrong word": refused(
        "a.csv", f"n,email\n1,{A}\n", "cannot be decoded", encoding="utf-16"),
    "the first of several": Case(
        "a.ndjson", f'{{"to":["{A}","{B}"]}}\n'.encode(), addresses=[A],
        said={"column": "to.0"}, reader=None),
    "a line without end": refused("a.txt", f"{A}\n" + "x" * 5_000_000, "line 2: is longer than"),
    "packed": refused("a.csv", b"\x1f\x8b\x08\0\0\0\0\0", "damaged gzip"),
    "a database": refused("a.csv", b"SQLite format 3\0" + b"\0" * 99, "is a database"),
}  # fmt: skip
