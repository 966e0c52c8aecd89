"""Writes the schemas of Kubernetes' objects as kubeconform reads them.

Kubernetes' own are in the package kubernetes-validate, where they refer to one file of definitions that
kubeconform does not follow: here each has its own. A ServiceMonitor is the Prometheus operator's.
"""

import json
from pathlib import Path
from zipfile import ZipFile

import yaml

INNER = "kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/"
SHARED = '"/api/_definitions.json#'
KINDS = (
    "deployment-apps-v1", "job-batch-v1", "poddisruptionbudget-policy-v1", "secret-v1", "service-v1",
)  # fmt: skip
MONITOR = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"


def write_schemas(wheel: Path, crds: Path, version: str, folder: Path) -> None:
    """Write a file for each kind that the chart has, with all that it refers to."""
    inner = INNER.format(version=version)
    with ZipFile(wheel) as files:
        shared = json.loads(files.read(f"{inner}_definitions.json"))["$defs"]
        for kind in KINDS:
            schema = {**json.loads(files.read(f"{inner}{kind}.json")), "$defs": shared}
            (folder / f"{kind}.json").write_text(json.dumps(schema).replace(SHARED, '"#'))
    monitor = yaml.safe_load((crds / MONITOR).read_text("utf-8"))
    [served] = monitor["spec"]["versions"]
    (folder / "servicemonitor-monitoring-v1.json").write_text(
        json.dumps(served["schema"]["openAPIV3Schema"])
    )
