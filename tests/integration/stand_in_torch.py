"""An executor that trains, in the place of upstream's: Transformers, and the wire dialect of contracts/job-bridge.md.

It does what that executor does with any model: load it from `artifacts`, save it, run batches of whole slices through a
preprocessor if there is one, send the change of everything that was saved (counters of batch norm as integers, a tied
weight under the name that safetensors gives it), add what arrives under those names. It knows nothing of `node`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file, save_model

sys.path.insert(0, str(Path(__file__).parent))
from stand_in import Connection, events

CLASSES = {"causal-lm": "AutoModelForCausalLM", "image-classification": "AutoModelForImageClassification"}


def batches(bridge: Connection, work_dir: Path, config: dict[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Of slice after slice; the next one is asked for when the one before has been read to its end."""
    processor = None
    if config.get("preprocessor"):
        bridge.ask("/resources/fetch", config["preprocessor"]["artifact"])
        processor = transformers.AutoImageProcessor.from_pretrained(work_dir / "artifacts", use_fast=False)
    while True:
        (entry,) = bridge.ask("/resources/fetch", config["data"])
        columns = load_file(work_dir / entry["path"])
        if processor is not None:
            columns |= processor(images=list(columns.pop("images")), return_tensors="pt")
        columns = {name: value if value.is_floating_point() else value.long() for name, value in columns.items()}
        if "labels" not in columns:
            columns["labels"] = columns["input_ids"]
        for start in range(0, len(columns["labels"]), config["batch_size"]):
            yield {name: value[start : start + config["batch_size"]] for name, value in columns.items()}


def saved(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """What is in the file that the model is saved to: a tied weight is there once, under the first of its names."""
    save_model(model, str(path))
    return load_file(path)


def main() -> int:
    """Rounds until the bridge says Done."""
    parser = argparse.ArgumentParser()
    for name in ("--socket", "--work-dir", "--job"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    work_dir = Path(options.work_dir)
    config = json.loads(options.job)["executor"]["config"]
    bridge = Connection(options.socket)
    bridge.ask("/resources/fetch", config["model"]["artifact"])
    model = getattr(transformers, CLASSES[config["model"]["task"]]).from_pretrained(work_dir / "artifacts").train()
    adamw = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["learning-rate"])
    receive = {"resource": config["results"], "path": "incoming"}
    received = events(Connection(options.socket).post("/resources/receive", receive))
    data = batches(bridge, work_dir, config)
    epoch = 1
    kept = work_dir / "0_global_weights.pt"
    before = saved(model, kept)
    while True:
        counter, losses = -1, []
        while counter != 0:
            batch = next(data)
            adamw.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            adamw.step()
            losses.append(loss.item())
            status = {"batch_size": len(batch["labels"]), "round_time": 3}
            answer = bridge.ask("/status/send", {"status": status})
            counter = answer["counter"] if answer["type"] == "ScheduleUpdate" else counter - 1
        bridge.ask("/status/send", "update")
        name = f"{epoch}_local_gradients.pt"
        after = model.state_dict()
        save_file({key: after[key] - value for key, value in before.items()}, work_dir / name)
        bridge.post("/resources/send", {"resource": config["updates"], "path": name}).read()
        bridge.ask("/status/send", {"metrics": {"round": epoch, "metrics": {"loss": sum(losses) / len(losses)}}})
        step = load_file(work_dir / next(received)["path"])
        model.load_state_dict({key: value + step[key] for key, value in before.items()}, strict=False)
        before = saved(model, kept)
        epoch += 1
        if bridge.ask("/status/send", "update-received")["type"] == "Done":
            save_file(before, work_dir.parent / f"end-{work_dir.name}.safetensors")
            return 0


if __name__ == "__main__":
    sys.exit(main())
