"""A dataset divided into parts, each a dataset of its own name: by rows, or by whole slices."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from node.data.build import Report, build
from node.data.building import building, show
from node.data.datasets import Dataset, check_header, encode_manifest, load_manifest, name_of, read_manifest
from node.data.datasets import write_file as write_manifest
from node.data.permutation import Permutation
from node.data.recipe import Recipe
from node.data.spool import parts_of
from node.errors import DatasetError
from node.manifest import MANIFEST
from node.network.partfile import sync_directory

By = Literal["rows", "slices"]
Share = tuple[str, float]


def parse_shares(texts: Sequence[str]) -> list[Share]:
    """Names and shares of `train=0.9 validation=0.1`; raises `DatasetError`."""
    shares: list[Share] = []
    for text in texts:
        name, _, number = text.partition("=")
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not name or not 0 < share < 1e9:
            raise DatasetError(f"{text!r} is no part of a dataset", hint="write train=0.9 validation=0.1")
        shares.append((name, share))
    if len(shares) < 2 or len({name for name, _ in shares}) < len(shares):
        raise DatasetError("a split needs two parts at least, each with a name of its own")
    return shares


def split(
    folder: Path,
    shares: Sequence[Share],
    *,
    by: By = "rows",
    seed: int = 0,
    out: Path | None = None,
    force: bool = False,
    workers: int | None = None,
    report: Report | None = None,
) -> list[Dataset]:
    """Divide a dataset into `<name>-<part>`, beside it or in `out`; what goes where follows from the seed alone.

    `rows`: rows are mixed, and cut into slices as large as the dataset's. `slices`: slices go to a part as they are,
    sharing their place on the disk where the file system can. Raises `DatasetError`.
    """
    dataset = read_manifest(folder)
    stem = (out or folder.resolve().parent) / dataset.name
    if by == "rows":
        recipe = Recipe(
            sources=[folder],
            format="slices",
            rows_per_slice=max(info.rows for info in dataset.manifest.slices),
            splits=tuple((f"-{name}", share) for name, share in shares),
            seed=seed,
        )
        return build(recipe, stem, force=force, workers=workers, report=report, split_of=dataset.name)
    targets = [stem.with_name(f"{dataset.name}-{name}") for name, _ in shares]
    for target in targets:
        name_of(target)
        if target.exists() and not (force and (target / MANIFEST).is_file()):
            raise DatasetError(f"{target} exists", hint="--force replaces it, if it is a dataset")
    infos = dataset.manifest.slices
    parts = parts_of(len(infos), [share for _, share in shares], seed)
    order = Permutation(len(infos), f"hypha parts {seed}")
    key = hashlib.sha256(f"{dataset.digest} {shares} {seed}".encode()).hexdigest()[:12]
    try:
        with building(stem, key) as part:
            start = 0
            for target, end in zip(targets, parts.bounds, strict=True):
                chosen = [info for index, info in enumerate(infos) if start <= order[index] < end]
                made = part / target.name
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                for info in chosen:
                    check_header(dataset, info)
                    _share(dataset.path_of(info), made / info.name)
                manifest = msgspec.structs.replace(
                    dataset.manifest, name=target.name, slices=chosen, split_of=dataset.name
                )
                write_manifest(made / MANIFEST, encode_manifest(manifest))
                start = end
            for target in targets:
                show(part / target.name, target, key)
            sync_directory(stem.parent)
    except OSError as error:
        raise DatasetError(f"{folder} cannot be split: {error.strerror}") from error
    return [found for target in targets if (found := load_manifest(target)) is not None]


def _share(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
