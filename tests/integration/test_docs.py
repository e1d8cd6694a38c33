"""The documents say what is true: links lead somewhere, snippets run, generated parts are fresh."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import pytest
import yaml

from tests.integration import test_examples

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
GUIDES = ROOT / "docs" / "guides"
SNIPPETS = [ROOT / "README.md", ROOT / "docs" / "start.md", *sorted(GUIDES.glob("*.md"))]


def blocks(path: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: pathlib.Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: pathlib.Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path = (page.parent / target) if target else page
        assert path.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def test_the_readme_is_short_and_leads_to_the_five_answers() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") < 200
    links = ["docs/glossary.md", "overview.md#the-way-of-one-activation", "#adding-a-codec", "#adding-a-metric"]
    assert [link for link in [*links, "#adding-an-ops-recompute-rule"] if link not in text] == []


@pytest.mark.parametrize("script", ["readme-table", "reference"])
def test_what_is_generated_is_fresh(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


def environment(folder: pathlib.Path) -> dict[str, str]:
    here = pathlib.Path(sys.executable).parent
    own = {
        "DAF_RUNTIME_DIR": str(folder / "run"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{folder}:{here}:{os.environ['PATH']}",
    }
    own |= {"HF_HUB_OFFLINE": "1"}
    return {name: value for name, value in os.environ.items() if not name.startswith("DAF_")} | own


def in_folder(line: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    own = environment(folder)
    return subprocess.run(
        line, shell=True, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=200
    )


def write_files(page: pathlib.Path, folder: pathlib.Path) -> None:
    """Write what the page shows as files, and the script that Start begins with."""
    (folder / "train.py").write_text(blocks(ROOT / "docs" / "start.md", "python")[0])
    for name, content in re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```', page.read_text(), flags=re.DOTALL | re.MULTILINE
    ):
        included = re.fullmatch(r'--8<-- "(.+)"\n', content)
        (folder / name).write_text((ROOT / included[1]).read_text() if included else content)


def own_snippets() -> list[tuple[pathlib.Path, str]]:
    """Return the Python that stands in a page itself: what it includes from examples/ is run as an example."""
    found = [(page, code) for page in SNIPPETS for code in blocks(page, "python")]
    return [(page, code) for page, code in found if "--8<--" not in code]


def console_lines() -> list[tuple[pathlib.Path, str]]:
    """Return each command once, with the first page that has it; what other tests run in the same way is left out."""
    found: dict[str, pathlib.Path] = {}
    for page in SNIPPETS:
        for line in "".join(blocks(page, "console")).splitlines():
            command = line.removeprefix("$ ").split("#")[0].strip()
            if not command.startswith("pip install") and not is_run_elsewhere(command):
                found.setdefault(command, page)
    return [(page, command) for command, page in found.items()]


def is_run_elsewhere(command: str) -> bool:
    """Whether this runs an example as test_examples.py does, or a snippet that is run as it stands."""
    words = command.removeprefix("PYTORCH_ALLOCATOR=daf ").split()
    plain = words[:-1] in (["python"], ["torchrun", "--standalone", "--nproc_per_node=2"])
    return plain and words[-1].removesuffix(".py") in (*test_examples.ALONE, *test_examples.TOGETHER, "ray_task")


def named(case: object) -> str:
    return case.name if isinstance(case, pathlib.Path) else str(case).split("\n")[0][:60]


@pytest.mark.parametrize(("page", "code"), own_snippets(), ids=named)
def test_every_python_snippet_runs(page: pathlib.Path, code: str, tmp_path: pathlib.Path) -> None:
    if "import ray" in code:
        pytest.importorskip("ray")
    (tmp_path / "snippet.py").write_text(code)
    done = in_folder(f"{sys.executable} snippet.py", tmp_path)
    assert done.returncode == 0, f"{page.name}: {done.stderr}"
    assert re.search(r"[1-9]", done.stdout) or "FIGURES" in code, "it prints figures that are not all zero"


@pytest.mark.parametrize(("page", "line"), console_lines(), ids=named)
def test_every_console_line_runs(page: pathlib.Path, line: str, tmp_path: pathlib.Path) -> None:
    for package in test_examples.NEEDS.get(pathlib.Path(line).stem.rpartition(" ")[2], ()):
        pytest.importorskip(package)
    write_files(page, tmp_path)
    if line.startswith("daf top"):  # a person looks at it; test_daf_top.py does for them
        line = "daf top --help"
    with beside(tmp_path) if line.startswith("daf budget") else contextlib.nullcontext():
        done = in_folder(line, tmp_path)
    assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    assert "DAF stays off" not in done.stderr, line


@contextlib.contextmanager
def beside(folder: pathlib.Path) -> Iterator[None]:
    """A run that a command can look at and steer."""
    (folder / "long.py").write_text((folder / "train.py").read_text().replace("range(20)", "range(10**6)"))
    own = environment(folder) | {"PYTORCH_ALLOCATOR": "daf"}
    with subprocess.Popen([sys.executable, "long.py"], cwd=folder, env=own) as run:
        try:
            deadline = time.monotonic() + 60
            while '"live"' not in in_folder("daf ps --json", folder).stdout and time.monotonic() < deadline:
                time.sleep(0.2)
            yield
        finally:
            run.kill()


def test_the_commands_that_pages_name_exist() -> None:
    from daf.cli import main

    known = set(main.list_commands(click.Context(main)))
    for page in PAGES:
        for name in re.findall(r"(?:`|^\$ |^)daf ([a-z]+)\b(?=[` ])", page.read_text(), flags=re.MULTILINE):
            assert name in known, f"{page.name}: daf {name}"


def test_the_settings_file_of_the_guide_can_be_read(tmp_path: pathlib.Path) -> None:
    from daf import settings_file

    write_files(GUIDES / "script.md", tmp_path)
    config = settings_file.Config.from_environment(settings_file.layered({}, tmp_path))
    assert (config.budget.num_bytes, config.max_error) == (2 * 2**30, 0.1)


def test_the_batch_script_of_slurm_runs(tmp_path: pathlib.Path) -> None:
    write_files(GUIDES / "slurm.md", tmp_path)
    (tmp_path / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    done = in_folder(f"SLURM_JOB_ID=7 TMPDIR={tmp_path} bash train.sbatch", tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("daf-7/*.page")) or any((tmp_path / "daf-7").iterdir()), "the run left its stats page"


def test_what_kubernetes_is_told_exists(tmp_path: pathlib.Path) -> None:
    from daf.config import variable
    from daf.setting_docs import OTHER_VARIABLES, SETTINGS

    write_files(GUIDES / "kubernetes.md", tmp_path)
    containers = yaml.safe_load((tmp_path / "train.yaml").read_text())["spec"]["containers"]
    known = {"PYTORCH_ALLOCATOR", *OTHER_VARIABLES, *map(variable, SETTINGS)}
    assert {item["name"] for container in containers for item in container["env"]} <= known
    serve = next(container["command"] for container in containers if container["name"] == "watch")
    assert in_folder(shlex.join([*serve, "--help"]), tmp_path).returncode == 0


def test_the_image_sets_variables_that_exist() -> None:
    from daf.setting_docs import OTHER_VARIABLES

    (image,) = blocks(GUIDES / "docker.md", "dockerfile")
    (line,) = [line for line in image.splitlines() if line.startswith("ENV ")]
    assert {word.split("=")[0] for word in line.split()[1:]} <= {"PYTORCH_ALLOCATOR", *OTHER_VARIABLES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_takes_the_guides_configuration(tmp_path: pathlib.Path) -> None:
    write_files(GUIDES / "prometheus.md", tmp_path)
    done = in_folder("promtool check config prometheus.yml", tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    own = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "start" / "index.html").is_file()
