"""An executor that trains, in the place of upstream's: Transformers, and the wire dialect of contracts/job-bridge.md.

It does what that executor does with any model: load it from `artifacts`, run batches of whole slices through a
preprocessor if there is one, send `theta_after - theta_before` for every parameter and running statistic (a tied weight
under one name), add what arrives. It knows nothing of `node`.
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
from safetensors.torch import load_file, save_file

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


def state(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and running statistics; `named_parameters` gives a tied weight once."""
    floats = {name: value for name, value in model.named_buffers() if value.is_floating_point()}
    return {**{name: value.detach() for name, value in model.named_parameters()}, **floats}


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
    while True:
        before = {name: value.clone() for name, value in state(model).items()}
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
        save_file({key: value - before[key] for key, value in state(model).items()}, work_dir / name)
        bridge.post("/resources/send", {"resource": config["updates"], "path": name}).read()
        bridge.ask("/status/send", {"metrics": {"round": epoch, "metrics": {"loss": sum(losses) / len(losses)}}})
        step = load_file(work_dir / next(received)["path"])
        for key, value in state(model).items():
            value.copy_(before[key] + step[key])
        epoch += 1
        if bridge.ask("/status/send", "update-received")["type"] == "Done":
            save_file(state(model), work_dir.parent / f"end-{work_dir.name}.safetensors")
            return 0


if __name__ == "__main__":
    sys.exit(main())
