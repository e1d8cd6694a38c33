"""The examples of deployment do what they promise: one folder, one user, a sidecar that does not hold the job up."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

import pytest
import yaml

FOLDER = pathlib.Path(__file__).parents[3] / "examples" / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))


def pod_specs() -> list[dict[str, Any]]:
    job = documents("job.yaml")[1]["spec"]["template"]["spec"]
    jobset = documents("jobset.yaml")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return [job, jobset]


@pytest.mark.parametrize("spec", pod_specs())
def test_the_sidecar_is_a_native_one_with_training_s_folder_and_user(spec: dict[str, Any]) -> None:
    [sidecar], [training] = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["volumeMounts"] == training["volumeMounts"]
    folders = [{it["name"]: it for it in one["env"]}["DAF_RUNTIME_DIR"]["value"] for one in (sidecar, training)]
    assert folders == ["/run/daf/own"] * 2
    assert spec["securityContext"]["runAsUser"] == 1000


def test_the_monitor_asks_the_sidecar_s_port_with_the_token() -> None:
    [monitor] = documents("podmonitor.yaml")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    ports = [port["name"] for spec in pod_specs() for port in spec["initContainers"][0]["ports"]]
    assert ports == [endpoint["port"]] * 2
    assert endpoint["honorLabels"] is True


def test_the_batch_script_is_one() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "slurm.sh")], check=True)
