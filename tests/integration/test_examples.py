"""Every example runs as its README says, on a CPU, with the real packages."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NEEDS = {
    "trainer": ("transformers", "accelerate"),
    "lora": ("transformers", "peft"),
    "trl_sft": ("trl",),
    "lightning_module": ("lightning",),
    "accelerate_loop": ("accelerate", "tensorboard"),
}
ALONE = ["plain", "session", "trainer", "trl_sft", "lora", "lightning_module", "accelerate_loop", "compiled"]
TOGETHER = ["ddp", "fsdp2"]


def run(command: list[str], folder: pathlib.Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DAF_RUNTIME_DIR": str(folder / "run"), "HF_HUB_OFFLINE": "1"}
    environment["PYTORCH_ALLOCATOR"] = "daf"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DAF stays off" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ALONE)
def test_the_example_runs(name: str, tmp_path: pathlib.Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    printed = run([sys.executable, str(ROOT / "examples" / f"{name}.py")], tmp_path)
    assert "loss" in printed or "daf" in printed


@pytest.mark.parametrize("name", TOGETHER)
def test_the_example_runs_with_two_processes(name: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    printed = run([*command, str(ROOT / "examples" / f"{name}.py")], tmp_path)
    assert printed.count("<daf.Session: state open") == 2


def test_the_notebook_shows_its_session_as_a_table(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "run"))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name=_kernel(tmp_path, monkeypatch))
    client.execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(shown) == 1
    assert "saved activations" in shown[0]
    assert int(outputs[-1]["data"]["text/plain"]) == 5, "the last step is counted too"


def _kernel(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This interpreter as a kernel, whatever kernels the machine has."""
    import json

    spec = folder / "jupyter" / "kernels" / "here"
    spec.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": arguments, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    return "here"


def test_the_readme_of_the_examples_names_every_file() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    names = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".ipynb"}]
    assert [name for name in names if f"`{name}`" not in text] == []
