"""The documents say what is true: links lead somewhere, snippets run, generated parts are fresh."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
SNIPPETS = [ROOT / "README.md", ROOT / "docs" / "start.md"]
# Commands of a console block that need a person or a run beside them: only that they exist is tried.
BESIDE_A_RUN = ("top", "budget")


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
    own = {"DAF_RUNTIME_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1", "PATH": f"{here}:{os.environ['PATH']}"}
    return {name: value for name, value in os.environ.items() if not name.startswith("DAF_")} | own


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda path: path.name)
def test_every_python_snippet_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for number, code in enumerate(blocks(page, "python")):
        (tmp_path / f"snippet{number}.py").write_text(code)
        command = [sys.executable, f"snippet{number}.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"[1-9]", done.stdout), "it prints figures that are not all zero"


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda path: path.name)
def test_every_console_line_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(blocks(ROOT / "docs" / "start.md", "python")[0])
    lines = {
        line.removeprefix("$ ").split("#")[0].strip()
        for block in blocks(page, "console")
        for line in block.splitlines()
    }
    for line in sorted(lines):
        words = shlex.split(line)
        if words[:2] == ["pip", "install"]:
            continue
        if words[0] == "daf" and words[1] in BESIDE_A_RUN:
            words = [*words[:2], "--help"]
        done = subprocess.run(
            shlex.join(words) if "=" not in words[0] else line,
            shell=True,
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        assert "DAF stays off" not in done.stderr, line


def test_the_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    own = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "start" / "index.html").is_file()
