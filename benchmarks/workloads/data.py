"""The data sets of the benchmarks, read from a folder of the user's (`--data`). Nothing is downloaded.

| set | files below the folder | what they hold |
|---|---|---|
| cifar10 | cifar10/cifar10_10k_2k.npz | x_train, y_train, x_test, y_test: uint8, NHWC |
| sst2 | sst2/{train,dev}.tsv | GLUE's SST-2: sentence, label, with a header line |
| stsb | stsb/sts-{train,dev,test}.csv | STS benchmark: score in column 5, sentences in 6 and 7, tab separated |
| charlm | charlm/tinyshakespeare.txt | plain text |
| e2e | e2e/{devset,testset_w_refs}.csv, e2e/train_partial_16606.tsv | meaning representation, reference |
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DEFAULT_FOLDER = Path("../shared/data")
CIFAR_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
CIFAR_DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


class MissingDataError(Exception):
    """A file that a benchmark needs is not in the data folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is missing. Benchmarks read data from the folder that --data names (default {DEFAULT_FOLDER}); "
            f"benchmarks/workloads/data.py lists the files it should hold and their form."
        )


@dataclass(frozen=True, slots=True)
class Images:
    """Images [N, 3, 32, 32] in bytes and their classes [N]. Batches are normalised per channel as they are taken."""

    x: Tensor
    y: Tensor

    def batch(self, chosen: Tensor) -> dict[str, Tensor]:
        """Return the images that `chosen` [B] indexes, as floats, and their classes."""
        pixels = self.x[chosen].float().div_(255)
        return {"x": pixels.sub_(CIFAR_MEAN).div_(CIFAR_DEVIATION), "y": self.y[chosen]}


class DataFolder:
    """Reads the sets lazily, so a benchmark only needs the files of its own task."""

    def __init__(self, path: str | Path = DEFAULT_FOLDER) -> None:
        self.path = Path(path)

    def _file(self, *parts: str) -> Path:
        path = self.path.joinpath(*parts)
        if not path.is_file():
            raise MissingDataError(path)
        return path

    def cifar10(self) -> tuple[Images, Images]:
        """Return the training and the test images."""
        with np.load(self._file("cifar10", "cifar10_10k_2k.npz")) as arrays:
            train, test = (
                Images(
                    torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).contiguous(),
                    torch.from_numpy(arrays[f"y_{part}"]).long().flatten(),
                )
                for part in ("train", "test")
            )
        return train, test

    def sst2(self, split: str) -> list[tuple[str, int]]:
        """Return (sentence, label) pairs of `train` or `dev`."""
        lines = self._file("sst2", f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        return [(sentence.strip(), int(label)) for sentence, label in (line.rsplit("\t", 1) for line in lines)]

    def stsb(self, split: str) -> list[tuple[str, str, float]]:
        """Return (sentence, sentence, score from 0 to 5) of `train`, `dev` or `test`."""
        lines = self._file("stsb", f"sts-{split}.csv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        return [(row[5], row[6], float(row[4])) for row in rows]

    def charlm(self) -> tuple[Tensor, Tensor, str]:
        """Return ids of the first 90 % and of the rest of the text, and the alphabet."""
        text = self._file("charlm", "tinyshakespeare.txt").read_text(encoding="utf-8")
        alphabet = "".join(sorted(set(text)))
        index = {character: number for number, character in enumerate(alphabet)}
        ids = torch.tensor([index[character] for character in text])
        split = len(ids) * 9 // 10
        return ids[:split], ids[split:], alphabet

    def e2e(self, split: str) -> list[tuple[str, str]]:
        """Return (meaning representation, reference) pairs of `train`, `dev` or `test`."""
        if split == "train":
            lines = self._file("e2e", "train_partial_16606.tsv").read_text(encoding="utf-8").splitlines()
            return [(mr, ref) for mr, ref in (line.split("\t", 1) for line in lines)]
        name = {"dev": "devset.csv", "test": "testset_w_refs.csv"}[split]
        with self._file("e2e", name).open(encoding="utf-8", newline="") as file:
            return [(row["mr"], row["ref"]) for row in csv.DictReader(file)]
