"""The pages of the service: their scripts, their first paint, and the table of a list of 1,000,000 rows.

A page is read by HTTP, whole, and painted by Chromium on the same machine.
"""

import gzip
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from mailprobe.api.forms.script import script_text
from mailprobe.api.pages.dashboard.assets import assets
from mailprobe.api.pages.views import STATIC, static_text

from ...harness.figures import RESULTS, Figure
from ...lab import start_lab
from ...load.pages.long_list import lengthen
from ...load.pages.page_reader import PageReader, open_browser, painted_ms, signed_in
from ...load.service_process import ServiceFailed, ServiceProcess, start_service

PLANS = "[scale]\nrate_limit_per_min = 1000000000\n"  # the list does not wait for its minute
ROWS = 1_000_000
VERIFIED = 10_000  # of them, by a test key; the others repeat these
ROUNDS = 5
PAUSE_S = 0.5
LIST_S_MAX = 300.0  # it takes some seconds
NAMES = ("deliverable", "undeliverable", "catch_all", "role", "full", "disposable")
PATHS = (
    *(f"/dashboard{path}" for path in ("", "/try", "/lists", "/jobs", "/keys", "/caps", "/start")),
    *("/docs", "/docs/api", "/docs/reference"),
)
PAGES = ("", "?order=worst", "?page=20000")
FILTERS = (
    *("light=RED_LIGHT", "status=unknown", "reason=full", "light=RED_LIGHT&order=worst&page=5000"),
    *("q=role%2B99", "q=deliverable%2B7&light=GREEN_LIGHT", "q=no+such+text"),
)


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pages-", dir=RESULTS) as folder,
        start_lab() as lab,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
        signed_in(service) as reader,
    ):
        return [*script_sizes(), *first_paints(service, reader), *large_list(service, reader)]


def script_sizes() -> list[Figure]:
    """The scripts of the dashboard and the documentation, as they are sent; and that of customers' forms."""
    texts = [static_text(name) for name in STATIC if name.endswith(".js")]
    octets = sum(len(text.encode()) for text in texts)
    octets += sum(len(each.octets) for name, each in assets().items() if name.endswith(".js"))
    return [
        Figure("script of all pages", octets / 1000, "KB"),
        Figure(
            "script of a form, gzipped", len(gzip.compress(script_text().encode())) / 1000, "KB"
        ),
    ]


def first_paints(service: ServiceProcess, reader: PageReader) -> list[Figure]:
    with open_browser(service, reader) as context:
        found = painted_ms(context, [service.url + path for path in PATHS], ROUNDS)
    slowest = max(found, key=lambda url: found[url])
    print(f"# painted last: {slowest.removeprefix(service.url)}")
    return [Figure("first paint of the slowest page", found[slowest], "ms")]


def large_list(service: ServiceProcess, reader: PageReader) -> list[Figure]:
    list_id = made_list(service)
    rows = lengthen(service.folder / "data/mailprobe.db", list_id, ROWS // VERIFIED)
    of, path = f"a list of {rows:,} rows", f"/dashboard/lists/{list_id}"
    return [
        slowest(f"{of}: its page", reader, [path]),
        slowest(f"{of}: a page of its table", reader, [f"{path}/table{each}" for each in PAGES]),
        slowest(f"{of}: a filter", reader, [f"{path}/table?{each}" for each in FILTERS]),
    ]


def slowest(what: str, reader: PageReader, paths: Sequence[str]) -> Figure:
    times = {path: reader.time_of(path, ROUNDS) for path in paths}
    for path, each in times.items():
        shown = path.partition("/lists/")[2].partition("/")[2] or "the page"
        print(f"# {each.ms:.0f} ms, of the processor {each.cpu_ms:.0f}: {shown}")
    worst = max(times.values(), key=lambda each: each.ms)
    return Figure(what, worst.ms, "ms", cpu_us=worst.cpu_ms * 1000)


def made_list(service: ServiceProcess) -> str:
    """The id of a list that is done, with verdicts of several kinds."""
    rows = (f"{NAMES[n % len(NAMES)]}+{n}@sandbox.test,Person {n}\n" for n in range(VERIFIED))
    body = "email,name\n" + "".join(rows)
    with httpx.Client(base_url=service.url, trust_env=False, timeout=LIST_S_MAX) as client:
        manages = {"Authorization": f"Bearer {service.account['provisioning_key']}"}
        key = client.post("/v1/management/keys", json={"test": True}, headers=manages).json()["key"]
        ours = {"Authorization": f"Bearer {key}", "Content-Type": "text/csv"}
        path = "/v1/lists?name=big.csv&column=email&recheck=0"
        sent = client.post(path, content=body.encode(), headers=ours)
        if sent.status_code != 202:
            raise ServiceFailed(sent.text)
        list_id: str = sent.json()["list_id"]
        ends_at = time.monotonic() + LIST_S_MAX
        while time.monotonic() < ends_at:
            found = client.get(f"/v1/lists/{list_id}", headers=ours).json()
            if found["status"] == "done":
                return list_id
            if found["status"] in ("failed", "paused"):
                raise ServiceFailed(f"the list: {found}")
            time.sleep(PAUSE_S)
    raise ServiceFailed("the list did not end")
