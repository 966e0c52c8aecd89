"""The chart of Kubernetes, by helm and kubeconform, and what it says of the image and the service."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, STOPPING_S, steps
from tests.helm.schemas import write_schemas
from tests.test_licences import PROJECT

CHART = DEPLOY / "helm"
BIN = Path(sys.executable).parent
VERSIONS = ("1.31.0", "1.37.0")  # the oldest and the newest that the chart is checked with
GIVEN = (
    "--set",
    "image.repository=registry.test/mailprobe",
    "--set-string",
    "config=secret_key = 1",
)
MONITORED = ("--set", "serviceMonitor.enabled=true")
KINDS = {"Deployment", "Service", "Secret", "Job", "PodDisruptionBudget", "ServiceMonitor"}
COMMAND_S = 60


def run(*words: str | Path, sent: str = "") -> tuple[int, str]:
    done = subprocess.run(words, input=sent, capture_output=True, text=True, timeout=COMMAND_S)
    return done.returncode, done.stdout + done.stderr


def rendered(*words: str) -> str:
    code, text = run(BIN / "helm", "template", "ours", CHART, *GIVEN, *words)
    assert code == 0, text
    return text


def objects(*words: str) -> dict[str, Any]:
    found = [each for each in yaml.safe_load_all(rendered(*words)) if each]
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


@pytest.fixture(scope="module", params=VERSIONS)
def conforms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("schemas")
    [wheel] = (ROOT / "build/helm").glob("kubernetes_validate-*.whl")
    write_schemas(wheel, Path(os.environ["CRDS"]), request.param, folder)
    where = f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    words = ("-strict", "-summary", "-kubernetes-version", request.param, "-schema-location", where)
    return lambda text: run(BIN / "kubeconform", *words, sent=text)


def test_helm_finds_no_fault() -> None:
    code, text = run(BIN / "helm", "lint", "--strict", CHART, *GIVEN, *MONITORED)
    assert code == 0, text


def test_every_object_is_as_kubernetes_takes_it(conforms: Any) -> None:
    code, text = conforms(rendered(*MONITORED))
    assert (code, f"Valid: {len(KINDS)}, Invalid: 0, Errors: 0" in text) == (0, True), text
    assert conforms(rendered("--set", "existingSecret=ours", "--set", "changesSchema=true"))[0] == 0


def test_a_mistake_is_found(conforms: Any) -> None:
    assert conforms(rendered("--set", "replicas=two"))[0] == 1
    assert conforms(rendered().replace("readinessProbe:", "readynessProbe:"))[0] == 1


def test_a_missing_value_is_an_error_that_names_it() -> None:
    code, text = run(BIN / "helm", "template", "ours", CHART, "--set", "existingSecret=ours")
    assert (code, "where your image is" in text) == (1, True)
    code, text = run(BIN / "helm", "template", "ours", CHART, *GIVEN[:2])
    assert (code, "config or existingSecret" in text) == (1, True)


def test_the_pods_are_the_image_as_it_should_run() -> None:
    found = objects(*MONITORED)
    assert set(found) == KINDS
    for kind in ("Deployment", "Job"):
        pod = found[kind]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        who = pod["securityContext"]
        assert [f"{who['runAsUser']}:{who['runAsGroup']}"] == steps("USER")
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["image"] == f"registry.test/mailprobe:{PROJECT['version']}"
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts.keys() == {"/data", "/tmp", "/run/mailprobe"}
        assert set(mounts.values()) == {each["name"] for each in pod["volumes"]}
    ports = {each["name"]: each["containerPort"] for each in container_of(found)["ports"]}
    assert str(ports["http"]) in steps("EXPOSE")[0].split()
    variables = {each["name"]: each["value"] for each in container_of(found)["env"]}
    assert variables["MAILPROBE_METRICS_BIND"] == f"0.0.0.0:{ports['metrics']}"


def container_of(found: dict[str, Any]) -> Any:
    return found["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def test_a_service_has_time_to_end() -> None:
    found = objects()
    wait = re.search(
        r"sleep\((\d+)\)", container_of(found)["lifecycle"]["preStop"]["exec"]["command"][2]
    )
    assert wait
    given_s = found["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert given_s > int(wait[1]) + STOPPING_S


def test_services_of_two_schemas_never_run_beside_each_other() -> None:
    found = objects()
    assert found["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
    job = found["Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["migrate", "--check"]
    found = objects("--set", "changesSchema=true")
    assert "Job" not in found
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
