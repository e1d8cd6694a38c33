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
