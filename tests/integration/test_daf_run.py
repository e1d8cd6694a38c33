from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

RUN = [sys.executable, "-m", "daf.cli", "run", "--no-sidecar", "--no-summary"]
SLEEPER = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: sys.exit(42))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "script.py"


def daf_run(*arguments: object, folder: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


def test_the_scripts_arguments_and_exit_code_pass_through(script: pathlib.Path) -> None:
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    result = daf_run(script, "--epochs", "3", "-x", "--help")
    assert result.stdout.strip() == "['--epochs', '3', '-x', '--help']"
    assert result.returncode == 7


def test_a_module_is_run_as_python_runs_it(script: pathlib.Path) -> None:
    script.write_text("import sys; print(__name__, sys.argv[1:])")
    result = daf_run("-m", script.stem, "one", folder=script.parent)
    assert result.stdout.strip() == "__main__ ['one']"


def test_settings_reach_the_script_as_its_environment(script: pathlib.Path) -> None:
    script.write_text("import os; print(*(os.environ[k] for k in ('PYTORCH_ALLOCATOR', 'DAF_BUDGET', 'DAF_BITS')))")
    result = daf_run("--budget", "1GiB", "--bits", "2", script)
    assert result.stdout.strip() == "daf 1GiB 2"


def test_an_unreadable_budget_is_refused_before_anything_runs(script: pathlib.Path) -> None:
    script.write_text("print('ran')")
    result = daf_run("--budget", "banana", script)
    assert result.returncode == 2
    assert "banana" in result.stderr
    assert "ran" not in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_pass_through_and_the_end_is_the_scripts_own(script: pathlib.Path, number: signal.Signals) -> None:
    script.write_text(SLEEPER)
    with subprocess.Popen([*RUN, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if number == signal.SIGINT:  # as a terminal does it: to the whole group
            os.killpg(child.pid, number)
        else:
            child.send_signal(number)
        assert child.wait(timeout=30) == 42


def test_a_script_killed_by_a_signal_ends_the_command_by_that_signal(script: pathlib.Path) -> None:
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert daf_run(script).returncode == -signal.SIGKILL


TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 8))
for _ in range(8):
    model(torch.randn(512, 64)).square().mean().backward()
"""


@pytest.mark.parametrize("launcher", [[], ["python"], ["--", "torchrun", "--standalone", "--nproc_per_node=2"]])
def test_a_script_however_it_is_launched_has_its_summary(
    launcher: list[str], script: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(TRAINING)
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(script.parent / "run"))
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    command = [*RUN[:-2], "--no-sidecar", "--budget", "64MiB", *launcher, script.name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=script.parent)
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if line.startswith("daf: ")]
    assert said[0] == "daf: on, budget 64.0 MiB"
    assert sum("8 steps of" in line for line in said) == (2 if launcher[:1] == ["--"] else 1)
    assert any("gradient error 0 (exact)" in line for line in said)
    assert said[-1].startswith("daf: `daf report --pid ")


@pytest.mark.parametrize("words", [["trian.py"], ["python", "trian.py"]])
def test_a_script_that_is_not_there_is_said_before_anything_starts(words: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    result = daf_run(*words, folder=tmp_path)
    assert result.returncode == 2
    assert "there is no script 'trian.py'; did you mean train.py?" in result.stderr
    assert "daf: on" not in result.stderr


def test_fidelity_takes_what_run_takes(script: pathlib.Path) -> None:
    (script.parent / "beside.py").write_text(TRAINING)
    script.write_text("import beside  # a module in the script's folder")
    command = [sys.executable, "-m", "daf.cli", "fidelity", "--steps", "1"]
    for words in (["--ratio", "4", str(script)], ["python", str(script)], ["-m", "beside"]):
        result = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=120, check=False, cwd=script.parent
        )
        assert "what compression does to the gradient" in result.stdout, result.stderr
    result = subprocess.run([*command, "/bin/true", str(script)], capture_output=True, text=True, check=False)
    assert "daf fidelity measures one: give it the script" in result.stderr
