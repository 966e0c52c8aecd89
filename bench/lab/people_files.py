"""Lists as people have them: exports of the usual programs, pasted texts, saved web pages.

`files()` yields each with its name, its octets, and what is right: the addresses that are verified,
in the order of the rows, or that the file is refused.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from .people_cells import ANN, BOB
from .workbooks import row, sheet, text, workbook


class PeopleFile(Struct, frozen=True):
    """A file: `addresses` of its rows, "" for a row without one; None: the file is refused."""

    name: str
    file: str
    octets: bytes
    addresses: Sequence[str] | None


BOTH = (ANN, BOB)
HTML = f"<table><tr><th>email</th><th>n</th></tr><tr><td>{ANN}</td><td>1</td></tr><tr><td>{BOB}<td>2</table>"
CARDS = (
    "BEGIN:VCARD\r\nVERSION:3.0\r\nFN:Clara Nowak\r\nN:Nowak;Clara;;;\r\nEMAIL;TYPE=INTERNET:{}\r\nEND:VCARD\r\n"
    "BEGIN:VCARD\r\nVERSION:3.0\r\nFN:Vera Garcia\r\nitem1.EMAIL;type=pref:{}\r\nEND:VCARD\r\n"
).format(*BOTH)

# name, file, text (of A and B, in UTF-8 if nothing else is said) -> the addresses of the rows
TEXTS: tuple[tuple[str, str, str, Sequence[str] | None], ...] = (
    # Exports of the usual programs, as their help pages show them
    ("Google contacts", "contacts.csv", "First Name,Last Name,E-mail 1 - Label,E-mail 1 - Value,E-mail 2 - Label,E-mail 2 - Value\nClara,Nowak,* Work,A,Home,B\nVera,Garcia,* Work,B,,\n", BOTH),
    ("Google contacts with joined values", "contacts.csv", "Name,E-mail 1 - Type,E-mail 1 - Value\nClara,* ,A ::: A\nVera,* ,B\n", BOTH),
    ("Outlook contacts", "contacts.csv", '"First Name","Last Name","E-mail Address","E-mail Display Name","E-mail 2 Address","E-mail 3 Address"\n"Clara","Nowak","A","Clara (A)","B",""\n', (ANN,)),
    ("Outlook in German", "kontakte.csv", '"Vorname","Nachname","E-Mail-Adresse","E-Mail 2: Adresse"\n"Clara","Nowak","A",""\n"Vera","Garcia","B",""\n', BOTH),
    ("Thunderbird", "book.csv", "First Name,Last Name,Display Name,Nickname,Primary Email,Secondary Email\nClara,Nowak,Clara Nowak,,A,\nVera,Garcia,,,B,\n", BOTH),
    ("HubSpot", "contacts.csv", "Record ID,First Name,Email,Additional email addresses,Lifecycle Stage\n1,Clara,A,,Customer\n2,Vera,B,A;B,Lead\n", BOTH),
    ("Salesforce report", "report.csv", '"Account Name","First Name","Email","Secondary Email"\n"Harbour","Clara","A",""\n"Harbour","Vera","B",""\n', BOTH),
    ("Mailchimp", "members.csv", "Email Address,First Name,Last Name,MEMBER_RATING,OPTIN_TIME\nA,Clara,Nowak,2,2024-01-02 10:00:00\nB,Vera,Garcia,2,2024-01-02 10:00:00\n", BOTH),
    ("Brevo events", "events.csv", "st_text,ts,sub,frm,email,tag,mid,link\nDelivered,12-03-2026 10:00:01,Hi,news@shop.example,A,,<1@x.example>,\n", (ANN,)),
    ("MailerLite", "subs.csv", "Subscriber,Name,Status\nA,Clara,Active\nB,Vera,Active\n", BOTH),
    ("Stripe customers", "customers.csv", "id,Description,Email,Name,Created (UTC)\ncus_1,,A,Clara,2024-01-02 10:00\ncus_2,,B,Vera,2024-01-02 10:00\n", BOTH),
    ("Shopify customers", "customers.csv", "Customer ID,First Name,Last Name,Email,Accepts Email Marketing,Phone\n'1,Clara,Nowak,A,yes,'+49301234\n'2,Vera,Garcia,B,no,\n", BOTH),
    ("WooCommerce orders", "orders.csv", "order_id,billing_first_name,billing_email,total\n1,Clara,A,9.90\n2,Vera,B,19.90\n", BOTH),
    ("WordPress users", "users.csv", "ID,user_login,user_email,display_name\n1,clara,A,Clara\n2,vera,B,Vera\n", BOTH),
    ("LinkedIn connections", "Connections.csv", 'Notes:\n"When exporting, some addresses are missing."\n\nFirst Name,Last Name,URL,Email Address,Company\nClara,Nowak,https://x.example/in/clara,A,Harbour\nVera,Garcia,https://x.example/in/vera,,Harbour\n', (ANN, "")),
    ("Facebook leads", "leads.csv", "id\tcreated_time\temail\tfull_name\nl:1\t2024-01-02T10:00:00+01:00\tA\tClara\nl:2\t2024-01-02T10:00:00+01:00\tB\tVera\n", BOTH),
    ("Eventbrite", "attendees.csv", "Order #,Order Date,First Name,Last Name,Email,Ticket Type\n1,2024-01-02,Clara,Nowak,A,Free\n2,2024-01-02,Vera,Garcia,B,Free\n", BOTH),
    ("Zoom registrants", "registrants.csv", "First Name,Last Name,Email,Registration Time,Approval Status\nClara,Nowak,A,Jan 2,approved\nVera,Garcia,B,Jan 2,approved\n", BOTH),
    ("Google Forms", "answers.csv", '"Timestamp","What is your name?","Email Address"\n"2024/01/02 10:00:00 AM","Clara","A"\n"2024/01/02 10:01:00 AM","Vera","B "\n', BOTH),
    ("Typeform", "answers.csv", "#,What's your *email*?,Submit Date\nx1,A,2024-01-02\nx2,B,2024-01-02\n", BOTH),
    ("Moodle", "users.csv", "username,firstname,lastname,email\nclara,Clara,Nowak,A\nvera,Vera,Garcia,B\n", BOTH),
    ("SAP, semicolons", "export.csv", "Partner;Name;E-Mail-Adresse\n0001;Nowak;A\n0002;Garcia;B\n", BOTH),
    ("Exchange, proxy addresses", "users.csv", 'DisplayName,ProxyAddresses\nClara,"SMTP:A;smtp:A"\nVera,"X500:/o=x;SMTP:B"\n', BOTH),
    ("LibreOffice, tabs", "list.tsv", "name\temail\nClara\tA\nVera\tB\n", BOTH),
    ("a database, with \\N", "dump.tsv", "1\tA\tx\n2\t\\N\ty\n3\tB\tz\n", (ANN, "", BOB)),
    ("pipes", "export.txt", "id|email|name\n1|A|Clara\n2|B|Vera\n", BOTH),
    # Wrapped
    ("guarded by Excel", "guard.csv", 'name,email,phone\n="Clara",="A",="0123"\n="Vera",="B",="0456"\n', BOTH),
    ("lines quoted as a whole", "quoted.csv", '"email,name"\n"A,Clara"\n"B,Vera"\n', BOTH),
    ("lines quoted as a whole, quotes doubled", "quoted.csv", '"email,name"\n"A,""Nowak, Clara"""\n"B,Vera"\n', BOTH),
    ("links", "links.csv", "email,n\nmailto:A,1\nmailto:B?subject=x,2\n", BOTH),
    ("Markdown", "notes.csv", "email,n\n[A](mailto:A),1\n[Vera](mailto:B),2\n", BOTH),
    ("mailboxes", "list.csv", 'email,n\n"Nowak, Clara <A>",1\nVera <B>,2\n', BOTH),
    ("labels without a header", "list.txt", "Email: A\nEmail: B\n", BOTH),
    ("trailing semicolons", "list.txt", "A;\nB;\n", BOTH),
    ("trailing commas", "list.txt", "A,\nB,\n", BOTH),
    ("bullets", "list.txt", "- A\n- B\n", BOTH),
    ("numbered", "list.txt", "1. A\n2. B\n", BOTH),
    ("quotes and commas of a program", "list.txt", "'A',\n'B',\n", BOTH),
    ("placeholders", "list.csv", "email,n\nA,1\nn/a,2\n-,3\nNULL,4\nB,5\n", (ANN, "", "", "", BOB)),
    ("a title above", "list.csv", "Customers 2024,\n,\nname,email\nClara,A\nVera,B\n", BOTH),
    ("a DOS end mark", "list.csv", "email\r\nA\r\nB\r\n\x1a", BOTH),
    ("a DOS end mark behind the last line", "list.txt", "A\r\nB\x1a", BOTH),
    # Recipients
    ("a line To:", "to.txt", "To: Clara Nowak <A>, B\n", BOTH),
    ("recipients with semicolons", "to.txt", '"Nowak, Clara" <A>; Vera Garcia <B>\n', BOTH),
    ("recipients without names", "to.txt", "A, B", BOTH),
    ("recipients over lines", "to.txt", "To: Clara <A>,\n\tVera <B>\n", BOTH),
    ("the head of a mail", "mail.txt", "From: Clara Nowak <A>\nSent: Monday, January 2, 2024 10:00\nTo: Clara Nowak <A>; Vera <B>\nSubject: Harbour, again\n", (ANN, ANN, BOB)),
    ("names with a comma", "to.txt", "Nowak, Clara <A>; Garcia, Vera <B>\n", BOTH),
    ("several in a cell", "list.csv", 'name,email\nHarbour,"A; B"\nClara,A\n', (ANN, ANN)),
    # Other kinds
    ("a web page", "page.html", f"<!DOCTYPE html><html><head><style>td {{ x: y }}</style></head><body>{HTML}</body></html>", BOTH),
    ("a web page named as a workbook", "export.xls", f"<html>{HTML}</html>", BOTH),
    ("a web page named as CSV", "table.csv", HTML, BOTH),
    ("a web page with links", "page.html", '<table><tr><th>name<th>email</tr><tr><td>Clara<td><a href="mailto:A">write</a></tr><tr><td>Vera<td>B</tr></table>', BOTH),
    ("contact cards", "contacts.vcf", CARDS, BOTH),
    ("objects", "list.ndjson", '{"email":"mailto:A"}\n{"email":"B"}\n', BOTH),
    ("strings", "list.ndjson", '"Clara <A>"\n"B"\n', BOTH),
    # Refused
    ("XML", "list.xml", '<?xml version="1.0"?><people><email>A</email></people>', None),
    ("LDIF", "list.ldif", "dn: cn=Clara\nmail: A\n", None),
    ("a PDF", "list.pdf", "%PDF-1.7\nA\n", None),
    ("a web page without a table", "page.html", "<html><body><p>A</p></body></html>", None),
    ("a column of names called email", "list.csv", "name,email\nA,Clara\nB,Vera\n", None),
    ("prose", "letter.txt", "Dear Clara,\nthank you for your order.\nYours, Vera\n", None),
)  # fmt: skip


def files() -> Iterator[PeopleFile]:
    for name, file, content, addresses in TEXTS:
        yield PeopleFile(name, file, _filled(content).encode(), addresses)
    table = "name;email\nJürgen;A\nRené;B\n"
    yield PeopleFile("Windows", "list.csv", _filled(table).encode("cp1252"), BOTH)
    yield PeopleFile(
        "Unicode text of Excel",
        "list.txt",
        _filled(table).replace(";", "\t").encode("utf-16"),
        BOTH,
    )
    book = sheet(
        row(1, text("A1", "name"), text("B1", "email")),
        row(2, text("A2", "Clara"), text("B2", f"mailto:{ANN}")),
        row(3, text("A3", "Vera"), text("B3", f"Vera &lt;{BOB}&gt;")),
    )
    yield PeopleFile("a workbook", "list.xlsx", workbook({"list": book}), BOTH)


def _filled(content: str) -> str:
    """The text with the addresses in the place of the words A and B."""
    words = {"A": ANN, "B": BOB}
    made, word = [], ""
    for character in f"{content}\0":
        if character.isalnum() or character in "_-":
            word += character
            continue
        made.append(words.get(word, word) + character)
        word = ""
    return "".join(made)[:-1]
