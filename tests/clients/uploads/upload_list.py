"""Uploads lists through the client of openapi-generator, and prints what came of each."""

import os
import sys
import time
from pathlib import Path

from openapi_client import (  # type: ignore[import-not-found]  # generated
    ApiClient,
    Configuration,
    ListsApi,
)

settings = Configuration(host=os.environ["BASE_URL"], access_token=os.environ["KEY"])
lists = ListsApi(ApiClient(settings))
for name in sys.argv[1:]:
    sent = lists.create_list(Path(name).read_bytes(), name=name)
    while lists.get_list(sent.list_id).status != "done":
        time.sleep(0.1)
    print(sent.name, sent.rows)
    # This generator's own reading knows JSON and text/* alone.
    rows = lists.get_list_results_without_preload_content(sent.list_id)
    print(rows.data.decode(), end="")
