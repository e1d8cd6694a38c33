"""`make bench`: the short benchmarks, one after the other, each as its own command. About ten minutes on two cores."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

METHODS = "plain,checkpoint,gact-2,daf-4,daf-2,daf-auto-20x"
SHORT = (
    ("codec", ""),
    ("reduce", "--rounds 5"),
    ("overhead", ""),
    ("packing", "--steps 3 --scale 0.25"),
    ("pool", ""),
    ("allocator", ""),
    ("sidecar", "--only idle,scrape,budget"),
    ("train", f"--model resnet18 --steps 5 --methods {METHODS}"),
    ("train", f"--model minilm-lora --steps 5 --methods {METHODS}"),
    ("maxbatch", "--model gpt-small --limit 1GiB --steps 2"),
    ("accuracy", "--task charlm --quick --seeds 1 --methods plain,daf-2,daf-auto-16x"),
)
TAKE_DATA = {"packing", "train", "maxbatch", "accuracy"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", help="comma separated names, such as train,maxbatch")
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets; default: %(default)s")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else None
    failed = [
        name
        for name, options in SHORT
        if (wanted is None or name in wanted) and not _run(name, options.split(), arguments.data)
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _run(name: str, options: list[str], data: str) -> bool:
    command = ["-m", f"benchmarks.{name}", *options, *(["--data", data] if name in TAKE_DATA else [])]
    print(f"\n$ python {' '.join(command)}", flush=True)
    began = time.monotonic()
    status = subprocess.run([sys.executable, *command], check=False).returncode
    print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
