"""What is kept of a model's answers: columns of a row, and the files they are written to, batch by batch.

A result has one row for each row of its slice, in the same order. `jsonl` is one JSON object a line, its key `row` the
row's number in the dataset; `safetensors` has a tensor for each column, its first dimension the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import torch

from node.errors import JobError
from node.executors.batches import Batch
from node.executors.denormals import flushed
from node.executors.models import LoadedModel

NOTHING = -1
"""What `tokens` holds after the last generated one."""
_DTYPES = {torch.float32: "F32", torch.int64: "I64"}

Columns = dict[str, torch.Tensor]


class OutputConfig(msgspec.Struct, frozen=True):
    """What to keep; see `node.wire.Output`."""

    kind: str
    format: str
    max_new_tokens: int = 32


class Predictor:
    """A loaded model, ready to answer; nothing of it is ever changed."""

    def __init__(self, loaded: LoadedModel, output: OutputConfig, device: torch.device, precision: str) -> None:
        self._module = loaded.module.to(device).eval()
        self._output = output
        self._device = device
        self._precision = precision
        keeps: dict[str, Callable[[Batch], Columns]] = {
            "logits": self._logits,
            "classes": self._classes,
            "hidden": self._hidden,
            "embeddings": self._embeddings,
            "tokens": self._tokens,
        }
        if output.kind not in keeps:
            raise JobError(f"unknown kind of output {output.kind!r}", hint=", ".join(keeps))
        self._keep = keeps[output.kind]

    @property
    def labels(self) -> dict[int, str]:
        """The names of the classes, where the model gives them names of its own."""
        named = getattr(getattr(self._module, "config", None), "id2label", None) or {}
        return {} if any(str(name).startswith("LABEL_") for name in named.values()) else dict(named)

    def __call__(self, batch: Batch) -> Columns:
        """The columns of a batch, in main memory."""
        inputs = {name: value.to(self._device) for name, value in batch.items() if name != "labels"}
        is_half = self._precision == "bf16"
        half = torch.autocast(self._device.type, torch.bfloat16, enabled=is_half)
        with flushed(), torch.no_grad(), half:
            columns = self._keep(inputs)
        return {
            name: value.to("cpu", torch.float32 if value.is_floating_point() else torch.int64).contiguous()
            for name, value in columns.items()
        }

    def _logits(self, inputs: Batch) -> Columns:
        return {"logits": _field(self._module(**inputs), "logits")}

    def _classes(self, inputs: Batch) -> Columns:
        score, index = _field(self._module(**inputs), "logits").float().softmax(-1).max(-1)
        return {"class": index, "score": score}

    def _hidden(self, inputs: Batch) -> Columns:
        # A Transformers model without its head; a module of the job's own is taken as it is.
        body = getattr(self._module, "base_model", self._module)
        return {"hidden": _field(body(**inputs), "last_hidden_state")}

    def _embeddings(self, inputs: Batch) -> Columns:
        hidden = self._hidden(inputs)["hidden"].float()
        if hidden.dim() < 3:
            return {"embedding": hidden}
        if hidden.dim() > 3:
            return {"embedding": hidden.flatten(2).mean(2)}
        mask = inputs.get("attention_mask")
        if mask is None or mask.shape != hidden.shape[:2]:
            return {"embedding": hidden.mean(1)}
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return {"embedding": (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)}

    def _tokens(self, inputs: Batch) -> Columns:
        if not hasattr(self._module, "generate"):
            raise JobError("this model generates no tokens", hint='use a causal-lm or seq2seq-lm, or kind = "classes"')
        settings = self._module.generation_config
        ends = settings.eos_token_id
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        pad = settings.pad_token_id if settings.pad_token_id is not None else ends[0] if ends else 0
        limit = self._output.max_new_tokens
        made = self._module.generate(**inputs, max_new_tokens=limit, do_sample=False, num_beams=1, pad_token_id=pad)
        # What a decoder alone makes begins with its prompt; an encoder's decoder begins with its start token.
        is_encoder_decoder = bool(getattr(self._module.config, "is_encoder_decoder", False))
        made = made[:, 1 if is_encoder_decoder else inputs["input_ids"].shape[1] :]
        tokens = made.new_full((made.shape[0], limit), NOTHING)
        tokens[:, : made.shape[1]] = made
        is_end = torch.isin(made, made.new_tensor(ends)) if ends else torch.zeros_like(made, dtype=torch.bool)
        is_after = is_end.long().cumsum(1) - is_end.long() > 0
        tokens[:, : made.shape[1]][is_after] = NOTHING
        return {"tokens": tokens}


def _field(answer: Any, name: str) -> torch.Tensor:
    value = answer if isinstance(answer, torch.Tensor) else getattr(answer, name, None)
    if isinstance(answer, dict):
        value = answer.get(name)
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        raise JobError(f"the model answers without {name}", hint="this kind of output is not for this kind of model")
    return value


class Sink:
    """A result on its way to the disk; a context manager. It has its name once it is finished, and never before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._file = self._part.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)

    def write(self, columns: Columns) -> None:
        """Append the rows of a batch."""
        raise NotImplementedError

    def finish(self) -> Path:
        """All rows are written; answers with the file, now whole under its name."""
        self._file.close()
        self._part.replace(self._path)
        return self._path


class TensorSink(Sink):
    """One safetensors file of `rows` rows. Rows are written where they belong as they come; none is kept."""

    def __init__(self, path: Path, rows: int) -> None:
        super().__init__(path)
        self._rows = rows
        self._done = 0
        self._shapes: dict[str, tuple[str, list[int]]] = {}
        self._places: dict[str, tuple[int, int]] = {}

    def write(self, columns: Columns) -> None:
        """Append the rows of a batch."""
        shapes = {name: (_DTYPES[value.dtype], list(value.shape[1:])) for name, value in columns.items()}
        if not self._shapes:
            self._begin(shapes)
        elif shapes != self._shapes:
            raise JobError(f"the model's answers change their shape within a slice: {self._shapes}, then {shapes}")
        for name, value in columns.items():
            start, row_bytes = self._places[name]
            self._file.seek(start + self._done * row_bytes)
            self._file.write(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
        self._done += len(next(iter(columns.values())))

    def finish(self) -> Path:
        """All rows are written; answers with the file, now whole under its name."""
        if self._done != self._rows:
            raise JobError(f"{self._done} of {self._rows} rows were answered")
        return super().finish()

    def _begin(self, shapes: dict[str, tuple[str, list[int]]]) -> None:
        self._shapes = shapes
        entries: dict[str, Any] = {}
        at = 0
        # Wide types first, so that every tensor stays aligned.
        for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: (item[1][0] != "I64", item[0])):
            row_bytes = math.prod(shape) * (8 if dtype == "I64" else 4)
            end = at + self._rows * row_bytes
            entries[name] = {"dtype": dtype, "shape": [self._rows, *shape], "data_offsets": [at, end]}
            self._places[name] = (at, row_bytes)
            at = end
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._file.truncate(8 + len(header) + at)
        self._places = {name: (8 + len(header) + start, size) for name, (start, size) in self._places.items()}


class LineSink(Sink):
    """One JSON object a row."""

    def __init__(
        self, path: Path, first_row: int, labels: dict[int, str], decode: Callable[[list[int]], str] | None
    ) -> None:
        super().__init__(path)
        self._row = first_row
        self._labels = labels
        self._decode = decode

    def write(self, columns: Columns) -> None:
        """Append the rows of a batch."""
        values = {name: value.tolist() for name, value in columns.items()}
        for at in range(len(next(iter(values.values())))):
            line: dict[str, Any] = {"row": self._row}
            line |= {name: _short(column[at]) for name, column in values.items()}
            if isinstance(line.get("class"), int) and line["class"] in self._labels:
                line["label"] = self._labels[line["class"]]
            if "tokens" in line:
                line["tokens"] = [token for token in line["tokens"] if token != NOTHING]
                if self._decode is not None:
                    line["text"] = self._decode(line["tokens"])
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._row += 1


def _short(value: Any) -> Any:
    """Floats with the seven digits that a float32 has."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
