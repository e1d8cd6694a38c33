"""Everything that only a CUDA machine can show, in one report: python -m benchmarks.gpu [--report FILE]

Without CUDA it says so and ends well.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

PYTEST = (sys.executable, "-m", "pytest", "-q", "-rs")


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    command: tuple[str, ...]


PARTS = (
    Part("The machine", ("nvidia-smi",)),
    Part("Triton kernels against the C reference", (*PYTEST, "tests/unit/kernels", "-k", "triton")),
    Part("The allocator under several streams", (*PYTEST, "tests/gpu/test_cuda_allocator.py")),
    Part("The engine on CUDA tensors", (*PYTEST, "tests/gpu/test_cuda_engine.py")),
    Part("The allocator against the driver's double", (*PYTEST, "tests/unit/allocator/test_cuda_door.py")),
    Part("The demo", (sys.executable, "-m", "daf.cli.demo")),
)


def why_not() -> str:
    """Return why nothing can be shown here; empty on a CUDA machine."""
    import torch

    if torch.cuda.is_available():
        return ""
    built = "was built without CUDA" if torch.version.cuda is None else "finds no usable CUDA device"
    return f"torch {torch.__version__} {built}"


def run(part: Part) -> tuple[bool, str]:
    """Run one part; return whether it went well and what to write about it."""
    start = time.monotonic()
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"DAF_DEVICE": "cuda"}
    try:
        with tempfile.TemporaryFile("w+") as said:
            result = subprocess.run(
                part.command, env=env, stdout=said, stderr=subprocess.STDOUT, timeout=1800, check=False
            )
            said.seek(0)
            output = said.read()
        status = result.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        status, output = 1, str(error)
    verdict = "fine" if status == 0 else f"FAILED (status {status})"
    text = f"## {part.title}: {verdict}\n\n`{' '.join(part.command)}`, {time.monotonic() - start:.0f} s\n\n"
    return status == 0, f"{text}```\n{output.rstrip()}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("build/gpu-report.md"))
    options = parser.parse_args()
    if reason := why_not():
        print(f"No CUDA here: {reason}. Nothing was run; on a machine with a GPU this writes {options.report}.")
        return 0
    options.report.parent.mkdir(parents=True, exist_ok=True)
    results = []
    with options.report.open("w", encoding="utf-8") as report:
        report.write(f"# DAF on {platform.node()}, {time.strftime('%Y-%m-%d %H:%M')}\n\n")
        for part in PARTS:
            is_fine, text = run(part)
            report.write(text + "\n")
            results.append(is_fine)
            print(f"{part.title}: {'fine' if is_fine else 'FAILED'}", flush=True)
    print(f"Report: {options.report}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
