"""Models: Transformers Auto models, and plain torch modules from the job's own files.

A Transformers model is named by its task, the Auto class in kebab-case (`causal-lm`), and loaded from local files only:
from safetensors weights when there are any, else from `config.json` with weights drawn from the seed. Code that comes
with a model (`trust_remote_code`) and pickled weights are never loaded.

A `torch` model is a file `model.py` of the job's folder with

    def build() -> torch.nn.Module: ...
    def loss(model, batch: dict[str, Tensor]) -> Tensor: ...      # optional; a mean over the batch

and, if the job brings weights, `model.safetensors` beside it with the names of `state_of(model)`. Without `loss` the
module is called with the batch's tensors by name and returns the loss, or something with `.loss`. This code runs in the
executor's and the parameter server's own processes only, never in a node, and with the job's folder as working
directory.

All models are float32; mixed precision is Accelerate's matter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from node.errors import JobError
from node.training.files import TensorReader
from node.training.reading import Values
from node.training.updates import layout_of, state_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
WEIGHT_FILES = (WEIGHTS, "model.safetensors.index.json")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json", ".part")
MODULE = "model.py"
PREPROCESSOR = ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")

Loss = Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, how its loss is computed, and the folder its files came from."""

    module: Any
    loss: Loss
    folder: Path
    task: str


def load_model(artifacts: Path, task: str, seed: int, filenames: Sequence[str] = ()) -> LoadedModel:
    """The model in a folder of fetched files. The random state of torch is as it was afterwards."""
    wanted = MODULE if task == "torch" else CONFIG
    folder, config = _locate(artifacts, wanted, filenames)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            if task == "torch":
                return _load_module(config)
            return LoadedModel(_load_transformers(folder, config, task), causal_or_plain_loss(task), folder, task)
        except JobError:
            raise
        except Exception as error:
            raise JobError(f"the {task} model cannot be loaded: {_one_line(error)}") from error


def enter_folder(artifacts: Path, task: str) -> None:
    """For a job with code of its own: make the job's folder this process's working directory, so that the code finds
    the files beside it by relative paths, as it did on its author's machine."""
    if task == "torch":
        os.chdir(artifacts)


def load_state(model: Any, path: Path) -> None:
    """Replaces the state that travels by that of a weights file."""
    tensors, traits = state_of(model)
    with TensorReader(path) as reader, torch.no_grad():
        values = Values(reader, layout_of(tensors), traits)
        for name, tensor in tensors.items():
            if values.holds(name):
                value = torch.empty(tensor.shape)
                values.read(name, 0, value.reshape(-1).numpy())
                tensor.copy_(value)


def export_model(loaded: LoadedModel, weights: Path, out: Path) -> None:
    """Fills a folder that `from_pretrained` (or the job's own `model.py`) loads."""
    out.mkdir(parents=True, exist_ok=True)
    if loaded.task == "torch":
        shutil.copyfile(weights, out / WEIGHTS)
    else:
        load_state(loaded.module, weights)
        loaded.module.save_pretrained(out)
    _copy_beside(loaded.folder, out, with_code=loaded.task == "torch")


def copy_preprocessor(artifacts: Path, filenames: Sequence[str], out: Path) -> None:
    """Adds a preprocessor's files to an exported model, so that `AutoProcessor` (or its own kind) loads from there."""
    _copy_beside(_preprocessor_folder(artifacts, filenames), out, with_code=False)


def listed(out: Path) -> list[dict[str, Any]]:
    """The files of an exported model, with digests."""
    return [
        {"name": path.name, "size_bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(out.iterdir())
        if path.is_file()
    ]


def causal_or_plain_loss(task: str) -> Loss:
    """The loss a Transformers model computes itself; a causal model's labels are its inputs (the model shifts them)."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if task == "causal-lm" and "labels" not in batch:
            batch = {**batch, "labels": batch["input_ids"]}
        return loss_of(model(**batch))

    return loss


def loss_of(output: Any) -> torch.Tensor:
    """The loss in what a model returned."""
    value = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise JobError("the model returned no loss", hint="the dataset needs a tensor named `labels`")
    return value.reshape(())


def load_preprocessor(artifacts: Path, task: str, filenames: Sequence[str] = ()) -> Any:
    """The image processor, feature extractor, tokenizer or processor in a folder of fetched files, or below it."""
    import transformers

    names = {"": "AutoProcessor", "auto": "AutoProcessor", "processor": "AutoProcessor", "tokenizer": "AutoTokenizer"}
    name = names.get(task) or "Auto" + "".join(part.capitalize() for part in task.split("-"))
    try:
        # A model's type, which upstream's files may give here, stands for the processor that comes with it.
        auto = getattr(transformers, name, transformers.AutoProcessor)
        folder = _preprocessor_folder(artifacts, filenames)
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise JobError(f"the preprocessor {task or 'auto'} cannot be loaded: {_one_line(error)}") from error


def _preprocessor_folder(artifacts: Path, filenames: Sequence[str]) -> Path:
    """Where the preprocessor lies among fetched files."""
    places = _places(artifacts, filenames)
    return next((place for place in places if any((place / name).is_file() for name in PREPROCESSOR)), artifacts)


def _copy_beside(folder: Path, out: Path, *, with_code: bool) -> None:
    """Copies what is no weights and is not there yet."""
    for source in sorted(folder.iterdir()):
        is_left = source.name.endswith(WEIGHT_SUFFIXES) or (source.suffix == ".py" and not with_code)
        if source.is_file() and not source.is_symlink() and not is_left and not (out / source.name).exists():
            shutil.copyfile(source, out / source.name)


def _locate(artifacts: Path, wanted: str, filenames: Sequence[str]) -> tuple[Path, Path]:
    """(the model's folder, its main file). The folder may be one of the job folder's own sub-folders."""
    for folder in _places(artifacts, filenames):
        if (folder / wanted).is_file():
            return folder, folder / wanted
    configs = [artifacts / name for name in filenames if name.endswith(Path(wanted).suffix)]
    if len(configs) == 1 and configs[0].is_file():
        return configs[0].parent, configs[0]
    raise JobError(f"the model's files have no {wanted}")


def _places(artifacts: Path, filenames: Sequence[str]) -> list[Path]:
    paths = [artifacts / name for name in filenames]
    return [artifacts, *(path if path.is_dir() else path.parent for path in paths)]


def _load_transformers(folder: Path, config_path: Path, task: str) -> Any:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    auto = _auto_class(modeling_auto, task)
    where = folder if config_path.name == CONFIG else config_path
    config = AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    if any((folder / name).is_file() for name in WEIGHT_FILES):
        return auto.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    if any(path.suffix == ".bin" for path in folder.iterdir()):
        raise JobError("the model's weights are pickled (.bin)", hint="use a revision with safetensors")
    return auto.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _auto_class(modeling_auto: Any, task: str) -> Any:
    if task == "auto":
        return modeling_auto.AutoModel
    wanted = "automodelfor" + task.replace("-", "").lower()
    for name in dir(modeling_auto):
        if name.lower() == wanted or name.lower() == wanted.replace("automodelfor", "automodelforaudio"):
            return getattr(modeling_auto, name)
    raise JobError(f"unknown model task {task!r}", hint="the name of a Transformers Auto class, as causal-lm, or torch")


def _load_module(path: Path) -> LoadedModel:
    folder = path.parent.resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"hypha_job_{_sha256(path)[:12]}", path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path.name} cannot be imported")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    if not callable(getattr(code, "build", None)):
        raise JobError(f"{path.name} has no function build()")
    module = code.build()
    if not isinstance(module, torch.nn.Module):
        raise JobError(f"build() of {path.name} returned no torch module")
    module = module.float()
    if (folder / WEIGHTS).is_file():
        load_state(module, folder / WEIGHTS)
    own = getattr(code, "loss", None)
    return LoadedModel(module, own if callable(own) else causal_or_plain_loss("torch"), folder, "torch")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
