"""Everything is in pyproject.toml but what it cannot say: the C modules, packages in folders of other names, and the
chart library, which is fetched when a wheel or an sdist is made."""

import runpy
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
FOLDERS = {"daf": "daf"} | {f"daf.{name}": name for name in ("allocator", "quant", "kernels", "server", "dashboards")}

# In a checkout a warning is an error; a compiler of tomorrow that warns of more must not keep a user from installing.
STRICT = ["-Wpedantic", "-Werror"] if (ROOT / ".git").exists() else ["-Wpedantic"]


def packages() -> list[str]:
    """Every folder below FOLDERS that has an __init__.py, by its import name."""
    return [
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for name, folder in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob("__init__.py"))
    ]


def fetch_chart_library() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "chart-library"))
    if not script["is_there"]():
        script["fetch"]()


class BuildNative(build_ext):
    """With STRICT for our own C files; what cffi writes beside them is not ours to mend, and what Python loads directly
    has its functions in tables of `void *`, as Python wants them."""

    def build_extensions(self) -> None:
        compile_one = self.compiler._compile

        def compile_strictly(target: str, source: str, *rest: Any) -> None:
            suffix, first, flags, macros = rest
            strict = [] if source.endswith("_native.c") else STRICT
            if source.startswith("quant/native/"):
                strict = [flag for flag in strict if flag != "-Wpedantic"]
            compile_one(target, source, suffix, first, [*flags, *strict], macros)

        self.compiler._compile = compile_strictly
        super().build_extensions()


class BuildPython(build_py):
    """With the chart library among the package's files."""

    def run(self) -> None:
        fetch_chart_library()
        self.__dict__.pop("data_files", None)  # listed before the library was there
        super().run()


class SourceDistribution(sdist):
    """With the chart library, so that building from it needs no network."""

    def run(self) -> None:
        fetch_chart_library()
        super().run()


setup(
    packages=packages(),
    package_dir=FOLDERS,
    ext_modules=[
        Extension(
            "daf.quant._gate",
            ["quant/native/gate.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra"],
        )
    ],
    cffi_modules=[
        "kernels/build_native.py:ffibuilder",
        "allocator/build_native.py:ffibuilder",
    ],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
