"""The service for an ASGI server on trio: `hypercorn --worker-class trio mailprobe.asgi:app`.

Settings come from the environment. docs/deployment.md says what this lacks of `mailprobe serve`.
"""

from mailprobe.api.asgi.app import ServiceApp

app = ServiceApp()
