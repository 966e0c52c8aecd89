"""Prints the API's description, with the default addresses of a service: what a release keeps a copy of."""

import json

from mailprobe.api.error_table import Links
from mailprobe.api.operations.table import description

URL = "http://127.0.0.1:8080"
LINKS = Links(URL, f"{URL}/docs", f"{URL}/dashboard")

if __name__ == "__main__":
    print(json.dumps(json.loads(description(LINKS)), indent=1, ensure_ascii=False))
