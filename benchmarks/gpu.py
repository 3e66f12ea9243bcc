"""The train loop on a GPU: the same losses as on the CPU, and tokens/s beside a plain loop.

`benchmarks/gpu.sh`, on a machine with a GPU. It needs torch, accelerate, safetensors and msgspec, and no cluster: the
bridge is a small server in a process of its own (real HTTP over a Unix socket) with the real aggregate program behind
it. `--device cpu --small` tries the script itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTER = {"learning_rate": 0.7, "momentum": 0.9}
ROUNDS, BATCHES = 4, 4
TOLERANCE = 1e-3
WANTED = 0.97


@contextlib.contextmanager
def bridge(folder: Path, *arguments: str) -> Iterator[str]:
    """A bridge process over the files of `folder`; gives its socket."""
    socket = folder / "s"
    command = [sys.executable, "-m", "benchmarks.gpu_bridge", str(folder), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        while not socket.exists():
            if process.poll() is not None:
                raise SystemExit("the bridge did not start")
            time.sleep(0.02)
        yield str(socket)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        socket.unlink(missing_ok=True)


def config_of(batch: int, codec: str, precision: str) -> dict[str, Any]:
    """The `config` of a job."""
    return {
        "model": {"task": "torch", "artifact": {"type": "job"}, "input-names": ["input_ids"], "seed": 1},
        "data": {"type": "scheduler"},
        "updates": {"type": "peers", "peers": ["server"]},
        "results": {"type": "peers", "peers": ["server"]},
        "optimizer": {"learning-rate": 1e-3, "epsilon": 1e-6},
        "batch_size": batch,
        "weights": {"type": "weights"},
        "rounds": ROUNDS,
        "sync": {"codec": codec},
        "outer": OUTER,
        "precision": precision,
    }


class Scene:
    """A model, a slice, and the device to compute on."""

    def __init__(self, folder: Path, device: str, rows: int, tokens: int, batch: int) -> None:
        import torch
        from safetensors.torch import save_file

        from benchmarks import gpt

        self.folder, self.device, self.batch, self.tokens = folder, device, batch, tokens
        (folder / "model").mkdir()
        shutil.copy(gpt.__file__, folder / "model" / "model.py")
        draw = torch.Generator().manual_seed(5)
        start, step = torch.randint(0, gpt.VOCABULARY, (rows, 1), generator=draw), torch.arange(tokens)
        save_file({"input_ids": ((start + 3 * step) % gpt.VOCABULARY).int()}, folder / "slice.safetensors")

    def accelerator(self, device: str) -> Any:
        """A fresh one."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
        return Accelerator(cpu=device == "cpu")

    def trainer(self, device: str, config: Any) -> Any:
        """The real one, with the seed's weights."""
        from node.executors.models import load_model
        from node.executors.trainer import Trainer

        loaded = load_model(self.folder / "model", "torch", 1)
        more = {"sync": config.sync, "outer": config.outer, "precision": config.precision}
        return Trainer(self.accelerator(device), loaded, config.optimizer, None, **more)

    def rounds(self, device: str, codec: str, precision: str) -> list[float]:
        """The loss of each round, trained and exchanged as a job's executor does it."""
        work = self.folder / f"{device}-{codec}-{precision}"
        work.mkdir()
        with bridge(work, "--batches", str(BATCHES), "--codec", codec) as socket:
            self.run(socket, work, device, codec, precision)
        shutil.rmtree(work / "server", ignore_errors=True)
        return [json.loads(line)["loss"] for line in (work / "metrics").read_text().splitlines()]

    def run(self, socket: str, work: Path, device: str, codec: str, precision: str, trainer: Any = None) -> float:
        """The executor's loop until the bridge says Done; the seconds it took."""
        import torch

        from node.executors.batches import Slice
        from node.executors.bridge_client import Bridge
        from node.executors.job import parse
        from node.executors.rounds import RoundLoop
        from node.executors.train import LocalRanks

        config = parse(json.dumps({"executor": {"config": config_of(self.batch, codec, precision)}})).config
        trainer = trainer or self.trainer(device, config)
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(contextlib.closing(Bridge(socket, work)))
            arrivals = stack.enter_context(contextlib.closing(client.arrivals(config.results, "incoming")))
            if (work / "server").exists():
                trainer.apply_weights(client.fetch({"type": "weights"})[0].path)
            loop = RoundLoop(
                config, trainer, client, arrivals, LocalRanks(), work_dir=work, version=0, validation=[],
                open_slice=lambda path: Slice(path, ["input_ids"]),
            )  # fmt: skip
            began = time.perf_counter()
            loop.run()
            if device != "cpu":
                torch.cuda.synchronize()
            return time.perf_counter() - began


class Plain:
    """The loop that anybody would write: the same rows, model and optimizer, nothing else, and no wait for a loss."""

    def __init__(self, scene: Scene, device: str, precision: str) -> None:
        import torch

        from node.executors.models import load_model

        self.scene, self.device, self.precision = scene, device, precision
        loaded = load_model(scene.folder / "model", "torch", 1)
        self.model, self.loss = loaded.module.to(device).train(), loaded.loss
        self.adamw = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.01, fused=device != "cpu" or None
        )

    def run(self, batches: int) -> float:
        """Trains on so many batches; the seconds it took."""
        import torch
        from safetensors.torch import load_file

        began = time.perf_counter()
        rows = load_file(self.scene.folder / "slice.safetensors")["input_ids"].long()
        size = self.scene.batch
        for number in range(batches):
            start = number * size % len(rows)
            batch = {"input_ids": rows[start : start + size].to(self.device, non_blocking=True)}
            with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
                loss = self.loss(self.model, batch)
            loss.backward()
            self.adamw.step()
            self.adamw.zero_grad(set_to_none=True)
        if self.device != "cpu":
            torch.cuda.synchronize()
        assert loss.isfinite().item()
        return time.perf_counter() - began


def check_losses(scene: Scene) -> bool:
    """Whether a job on the device has the CPU's losses."""
    sound = True
    for codec in ("none", "int8"):
        reference = scene.rounds("cpu", codec, "fp32")
        for precision, allowed in (("fp32", TOLERANCE), ("bf16", 50 * TOLERANCE)):
            made = (
                scene.rounds(scene.device, codec, precision)
                if scene.device != "cpu" or precision == "bf16"
                else reference
            )
            apart = max(abs(one - two) / abs(two) for one, two in zip(made, reference, strict=True))
            fits = apart <= allowed and len(made) == ROUNDS
            sound = sound and fits
            losses = " ".join(f"{loss:.5f}" for loss in made)
            print(f"losses codec={codec} {precision} {scene.device}: {losses}; apart from the CPU's fp32 by "
                  f"{apart:.1e} (allowed {allowed:.0e}) {'ok' if fits else 'TOO FAR'}", flush=True)  # fmt: skip
    return sound


def compare_speed(scene: Scene, precision: str, batches: int, repeats: int) -> float:
    """Ours over the plain loop, by the medians of alternating runs."""
    from node.executors.job import parse

    config = parse(json.dumps({"executor": {"config": config_of(scene.batch, "none", precision)}})).config
    plain, trainer = Plain(scene, scene.device, precision), scene.trainer(scene.device, config)
    took: dict[str, list[float]] = {"ours": [], "plain": []}
    for number in range(repeats + 1):
        work = scene.folder / f"speed-{precision}-{number}"
        work.mkdir()
        with bridge(work, "--done-after", str(batches)) as socket:
            if number == 1:
                trainer.probe = lambda size, read: size  # once in an executor's life
            turns = {
                "ours": lambda: scene.run(socket, work, scene.device, "none", precision, trainer),  # noqa: B023
                "plain": lambda: plain.run(batches),
            }
            for name in sorted(turns, reverse=number % 2 == 1):
                seconds = turns[name]()
                if number:  # the first of each warms up
                    took[name].append(seconds)
    tokens = batches * scene.batch * scene.tokens
    speed = {name: tokens / statistics.median(seconds) for name, seconds in took.items()}
    ratio = speed["ours"] / speed["plain"]
    spread = {name: (max(seconds) - min(seconds)) / min(seconds) for name, seconds in took.items()}
    print(f"speed {precision} {scene.device}: ours {speed['ours']:,.0f} tokens/s, plain loop {speed['plain']:,.0f}, "
          f"ratio {ratio:.3f} (wanted {WANTED}); {repeats} runs of {batches} batches each, spread ours "
          f"{spread['ours']:.1%}, plain {spread['plain']:.1%}", flush=True)  # fmt: skip
    return ratio


SMALL = {"GPT_VOCABULARY": "512", "GPT_WIDTH": "64", "GPT_LAYERS": "2"}


def main() -> int:
    """The program. Each step runs in a process of its own, which is told the model's size by its environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step", choices=["losses", "speed"])
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing to measure (torch sees no CUDA device)")
        return 0
    if options.step is None:
        name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        print(f"torch {torch.__version__}, {name}", flush=True)
        # The losses are compared on a small model: it is the arithmetic that is checked, and the CPU has to keep up.
        sizes = {"losses": {**SMALL, "GPT_WIDTH": "128"}, "speed": SMALL if options.small else {}}
        command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--step"]
        ends = [subprocess.run([*command, step], env={**os.environ, **sizes[step]}, cwd=ROOT) for step in sizes]
        return max(end.returncode for end in ends)
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        if options.step == "losses":
            return 0 if check_losses(Scene(Path(folder), options.device, 64, 64, 8)) else 1
        tokens, batch = (64, 8) if options.small else (512, 16)
        scene = Scene(Path(folder), options.device, 32 * batch, tokens, batch)
        batches = {"fp32": 20, "bf16": 100} if not options.small else {"fp32": 40, "bf16": 40}
        ratios = [compare_speed(scene, precision, count, options.repeats) for precision, count in batches.items()]
        return 0 if min(ratios) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
