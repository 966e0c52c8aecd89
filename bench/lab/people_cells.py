"""Cells of columns of addresses as people and programs fill them, each with its right reading.

`cells()` yields them: what is in the cell, what it is (`Kind`), and the addresses that are right.
Those of "one" and "several" are verified, that of "doubtful" is suggested.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

Kind = Literal["exact", "one", "several", "doubtful", "none", "bad"]

ANN = "clara.nowak@harbour-books.test"  # lives in the lab
BOB = "vera.garcia-84@harbour-books.test"  # no such mailbox there
LOCAL, DOMAIN = ANN.split("@")


class PeopleCell(Struct, frozen=True):
    """A cell, and what is right."""

    text: str
    kind: Kind
    addresses: tuple[str, ...] = ()


def cells() -> Iterator[PeopleCell]:
    for template in ONE:
        yield PeopleCell(template.replace("{}", ANN), "one", (ANN,))
    for text in DOUBTFUL:
        yield PeopleCell(text, "doubtful", (ANN,))
    for template in SEVERAL:
        yield PeopleCell(template.replace("{}", ANN).replace("{2}", BOB), "several", (ANN, BOB))
    for text in NONE:
        yield PeopleCell(text, "none")
    for text in EXACT:
        yield PeopleCell(text, "exact", (text.strip(),))
    for text in BAD:
        yield PeopleCell(text, "bad")


# Exactly one address: {} stands for it.
ONE = (
    # links
    "mailto:{}", "MAILTO:{}", "mailto:{}?subject=Hi", "mailto:{}?subject=Hi&body=x%20y",
    "mailto: {}", "mailto://{}", "mailto:%20{}", "[{}](mailto:{})", "[Clara](mailto:{})",
    "<mailto:{}>", "[mailto:{}]", "{}<mailto:{}>", "{} <mailto:{}>", "Clara <mailto:{}>",
    '<a href="mailto:{}">{}</a>', "<a href='mailto:{}'>Clara</a>", '<a href="mailto:{}?subject=a">mail</a>',
    "&lt;{}&gt;", "&quot;Clara&quot; &lt;{}&gt;", "<td>{}</td>", "<b>{}</b>", "<p>{}<br></p>", "{}<br>",
    '=HYPERLINK("mailto:{}","Clara")', '=HYPERLINK("mailto:{}";"Clara")', '=HYPERLINK("mailto:{}")',
    '="{}"', "https://shop.test/unsubscribe?email={}", "https://shop.test/u/{}/x",
    # the end of a sentence or of a list
    "{}.", "{};", "{},", "{}:", "{}!", "{}?", "{} ;", "{} ,", "{}...", "{}…", "{};;", "{}.,", ",{}", ";{}", ": {}",
    # quotes and brackets
    "'{}'", '"{}"', "`{}`", "“{}”", "„{}“", "»{}«", "«{}»", "« {} »", "‹{}›", "‘{}’", "‚{}‘", "”{}”", "「{}」", "『{}』",
    "《{}》", "〈{}〉", "【{}】", "（{}）", "［{}］", "＜{}＞", "({})", "( {} )", "[{}]", "{{}}", "<{}>", "< {} >", "<{}", "{}>",
    "({}", "{})", '"{}', '{}"', "“{}", "{}”", "<<{}>>", "'<{}>'", "**{}**", "*{}*", "_{}_", "__{}__", "~{}~", "|{}|",
    # beside it without a space
    "(work){}", "{}(work)", "[1]{}", "12,{}", "Clara,{}", "E-Mail,{}", "{},Berlin", "{},no", '"Clara Nowak"{}', '"Vera <vera@oceania.test>" <{}>',
    # names of directories, logs and links' queries
    "mail={}", "mail={},ou=people,dc=shop,dc=test", "uid=cn,mail={}", "user={}", "sent user={} ok", "to={}", "?email={}",
    "id=5&email={}", "a=1&b=x.y&e-mail={}", "email_address={}", "username={};role=x",
    # labels
    "Email: {}", "E-mail: {}", "e-mail : {}", "E-Mail-Adresse: {}", "Mail: {}", "SMTP:{}", "smtp:{}", "To: {}", "An: {}",
    "Correo: {}", "Courriel : {}", "почта: {}", "邮箱：{}", "メール：{}", "e:{}", "Email={}", "email={}", "E-Mail {}",
    "Work: {}", "1. {}", "1) {}", "- {}", "• {}", "* {}", "> {}", "→ {}", "✉ {}", "📧 {}", "#1: {}",
    # names and notes
    "Clara Nowak {}", "Clara Nowak <{}>", "Clara Nowak<{}>", '"Nowak, Clara" <{}>', "Nowak, Clara <{}>", "'{}' <{}>",
    "{} <{}>", "{} ({})", "Clara Nowak ({})", "Clara Nowak, {}", "Clara Nowak - {}", "Clara Nowak: {}", "Nowak Clara; {}",
    "Dr. Clara Nowak {}", "{} Clara Nowak", "{} (Clara Nowak)", "{} (work)", "{} - work", "{}, office", "{} / office",
    "{} do not use", "{} (bounced 2023)", "{}, tel. 12", "{} +49 30 1234567", "clara nowak {}", "Frau Nowak\n{}",
    "Clara\t{}", "{}\tClara", "CEO, {}", "Łukasz Żak {}", "山田太郎 {}", "山田太郎<{}>", "please use {} from now on",
    # invisible, and other at signs
    "\u200b{}", "{}\u200b", "\ufeff{}", "{}\ufeff", "\u200e{}", "{}\u200f", "\u202a{}\u202c", "\u2066{}\u2069", "\u00ad{}", "\u2060{}\u2060",
    "\u00a0\u200b{}\u00a0", "\u200e{}.", "\u200c{}", LOCAL + "＠" + DOMAIN, LOCAL + "﹫" + DOMAIN, "Clara <" + LOCAL + "＠" + DOMAIN + ">",
    # half of a pair, bullets, signs and marks without a space, leftovers of programs
    "'{}", "`{}", "*{}", "-{}", "--{}", "–{}", "·{}", "@{}", "✅{}", "✓{}", "►{}", "{}-", "{}--", "{}®", "{}™", "{}¹", "{}†", "{}😀", "{}✔",
    "{}_x000D_", "_x000D_{}", r"\u003c{}\u003e", r"Clara \u003c{}\u003e", r"{}\n", r"{}\r\n", "=20{}", "mailto%3A{}", "%3C{}%3E", "{}%0D%0A",
    LOCAL + "%40" + DOMAIN, "邮箱{}", "メール{}",
    LOCAL + "&#64;" + DOMAIN, LOCAL + "&commat;" + DOMAIN, "mailto:" + LOCAL + "%40" + DOMAIN,
)  # fmt: skip

DOUBTFUL = (
    f"{LOCAL} (at) {DOMAIN}", f"{LOCAL}(at){DOMAIN}", f"{LOCAL} [at] {DOMAIN}", f"{LOCAL}[at]{DOMAIN}", f"{LOCAL} {{at}} {DOMAIN}",
    f"{LOCAL} <at> {DOMAIN}", f"{LOCAL} (AT) {DOMAIN}", f"{LOCAL}(@){DOMAIN}", f"{LOCAL} [@] {DOMAIN}", f"{LOCAL} at {DOMAIN}",
    f"{LOCAL} AT {DOMAIN}", f"{LOCAL}_at_{DOMAIN}", f"{LOCAL}-at-{DOMAIN}", f"{LOCAL} (ät) {DOMAIN}", f"{LOCAL} [arroba] {DOMAIN}",
    "clara.nowak (at) harbour-books (dot) test", "clara.nowak[at]harbour-books[dot]test", "clara.nowak at harbour-books dot test",
    "clara(dot)nowak(at)harbour-books(dot)test", "clara.nowak (at) harbour-books.test (work)",
    f"{LOCAL} @{DOMAIN}", f"{LOCAL}@ {DOMAIN}", f"{LOCAL} @ {DOMAIN}", f"{LOCAL}\n@{DOMAIN}", f"{LOCAL}@\u00a0{DOMAIN}",
    "clara. nowak@harbour-books.test", "clara.nowak@harbour-books .test", "clara.nowak@harbour-books. test",
    "clara.nowak@harbour-books . test", "clara.nowak@ harbour-books .test", "clara.nowak@harbour- books.test",
    f"{LOCAL}@@{DOMAIN}", f"{LOCAL}@harbour-books,test", f"{LOCAL}@harbour-books..test", f"{LOCAL}.@{DOMAIN}", f"{LOCAL}@.{DOMAIN}", f".{LOCAL}@{DOMAIN}",
    f"clara..nowak@{DOMAIN}", f"clara\u200b.nowak@{DOMAIN}", f"{LOCAL}@harbour\u00ad-books.test", f"{LOCAL}\\@{DOMAIN}",
    f"{LOCAL}@harbour\u2011books.test", f"{LOCAL}@harbour\u2010books.test", f"{LOCAL}@harbour–books.test", f"{LOCAL}((at)){DOMAIN}",
    f"{LOCAL}@-{DOMAIN}", f"Clara <{LOCAL}@harbour\u2011books.test>",
    f"clara . nowak@{DOMAIN}", f"clara .nowak@{DOMAIN}", "clara . nowak@harbour-books . test", f"clara,nowak@{DOMAIN}",
    f"ｃｌａｒａ.ｎｏｗａｋ＠{DOMAIN}", "clara.nowak@harbour-books。test", f"{LOCAL}@harbour-books．test",
)  # fmt: skip

SEVERAL = (
    "{}; {2}", "{};{2}", "{}, {2}", "{},{2}", "{} {2}", "{} / {2}", "{}/{2}", "{} | {2}", "{}|{2}", "{} or {2}", "{} and {2}", "{} & {2}",
    "{} und {2}", "{}\n{2}", "{}\r\n{2}", "{}\t{2}", "{} ({2})", "<{}>, <{2}>", "<{}> <{2}>", "Clara <{}>, Vera <{2}>", "Clara <{}>; Vera <{2}>",
    '"Nowak, Clara" <{}>, {2}', "To: Clara <{}>, {2};", "Cc: {}; {2}", "['{}', '{2}']", '["{}", "{2}"]', "{{},{2}}", "SMTP:{};smtp:{2}",
    "mailto:{}?cc={2}", "mailto:{},{2}", "1. {} 2. {2}", "- {}\n- {2}", "work: {}, home: {2}", "{}; {2}; {}", "{}; {2};", "{} - {2}", "{} + {2}",
    "new:\n{}\n{2}", "{}<br>{2}", '<a href="mailto:{}">{}</a>, <a href="mailto:{2}">{2}</a>', "{}；{2}", "{}、{2}", "{}·{2}", "{}・{2}", "{}–{2}", r"{}\n{2}", "{}%0D%0A{2}", "{}_x000D_{2}", "{} • {2}", "{}->{2}",
)  # fmt: skip

NONE = (
    "", " ", "\u00a0", "\u200b", "-", "--", "---", "–", "—", ".", "...", "…", "?", "??", "/", "n/a", "N/A", "#N/A", "NA", "n.a.", "na", "none", "None",
    "NONE", "null", "NULL", "(null)", "<null>", "nil", "nan", "NaN", r"\N", "undefined", "unknown", "Unknown", "[unknown]", "[not provided]",
    "Not Provided", "(not set)", "not available", "no email", "No e-mail", "noemail", "no", "x", "xxx", "0", "tbd", "TBA", "missing", "#REF!",
    "#VALUE!", "keine", "Keine E-Mail", "keine Angabe", "k.A.", "unbekannt", "aucun", "sans", "inconnu", "non renseigné", "s.o.", "sin correo",
    "no tiene", "ninguno", "desconocido", "sem e-mail", "não tem", "nessuna", "n.d.", "geen", "onbekend", "n.v.t.", "brak", "není", "saknas",
    "/o=ExchangeLabs/ou=Exchange Administrative Group (FYDIBOHF23SPDLT)/cn=Recipients/cn=0a1b2c-clara", "kein",
    "nincs", "yok", "нет", "не указан", "无", "暂无", "なし", "不明", "없음",
)  # fmt: skip

EXACT = (
    ANN, f" {ANN} ", f"{ANN}\n", f"\n{ANN}", f"\u00a0{ANN}", "Clara.Nowak@Harbour-Books.TEST", "clara+news@harbour-books.test", "o'brien@harbour-books.test",
    '"clara nowak"@harbour-books.test', '"a@b c@d"@harbour-books.test', "clara_nowak@harbour-books.test", "clara-@harbour-books.test",
    "c@harbour-books.test", "józef@harbour-books.test", "用户@harbour-books.test", "clara@bücher.test", "clara@xn--bcher-kva.test",
    "clara@col·legi.test", "col·lectiu@harbour-books.test", "1234@harbour-books.test", "clara=x@harbour-books.test", "clara/x@harbour-books.test", "{clara}@harbour-books.test", "#clara@harbour-books.test",
)  # fmt: skip

# No address, and none that is meant for certain: they stay as they are.
BAD = (
    "hello", "Clara Nowak", "clara.nowak", "@harbour-books.test", "clara.nowak@", "clara@harbour", "a@b@c.test", "clara@[192.0.2.1]",
    "@clara_nowak", "www.harbour-books.test", "https://harbour-books.test", "+49 30 1234567", "ask at reception", "@,@,@", "clara@shop_x.test",
    "jos\N{REPLACEMENT CHARACTER}@harbour-books.test", r"HARBOUR\nowak@harbour-books.test", "see card",
    # parts of other addresses
    "clara@harbour-books.test@other.test", '"clara".nowak@harbour-books.test', 'clara"nowak"@harbour-books.test',
    'x."clara".nowak@harbour-books.test', "clara(x).nowak@harbour-books.test", "cl[a]ra@harbour-books.test", "clara@harbour.books!test.test",
)  # fmt: skip
