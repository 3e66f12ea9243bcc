"""A parameter server's arithmetic without torch: a plain mean of one small tensor. Speaks the daemon's JSON lines."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import tiny_tensors


def described(path: Path) -> dict[str, Any]:
    """Digest and size of a file."""
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size_bytes": path.stat().st_size}


def made(folder: Path, version: int, weights: list[float], step: list[float] | None) -> dict[str, Any]:
    """Write a version, and what the answer says of it."""
    files = {"weights": weights, "momentum": [0.0] * 4 if version else None, "delta": step}
    answer: dict[str, Any] = {"version": version}
    for kind, values in files.items():
        if values is not None:
            path = folder / f"{kind}-{version}.safetensors"
            tiny_tensors.write(path, values)
            answer[kind] = described(path)
    return answer


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    folder = Path(request["folder"])
    match request["do"]:
        case "prepare":
            return made(folder, 0, [0.0] * 4, None)
        case "replay":
            paths = [Path(file["path"]) for file in request["files"] if file["kind"] in ("weights", "delta")]
            weights = [sum(values) for values in zip(*map(tiny_tensors.read, paths), strict=True)]
            return made(Path(request["out"]), max(file["number"] for file in request["files"]), weights, None)
        case "check":
            values = tiny_tensors.read(Path(request["path"]))
            if len(values) != 4 or not all(map(math.isfinite, values)):
                raise ValueError("tensor w has values that are not finite")
            return {"norm": math.sqrt(sum(value * value for value in values))}
        case "commit":
            if os.path.exists(folder / "die"):  # noqa: PTH110
                os.unlink(folder / "die")  # noqa: PTH108
                os._exit(9)
            if os.path.exists(folder / "full"):  # noqa: PTH110
                raise OSError(28, "No space left on device")
            round_, updates = request["round"], request["updates"]
            total = sum(update["weight"] for update in updates)
            step = [0.0] * 4
            for update in updates:
                for place, value in enumerate(tiny_tensors.read(Path(update["path"]))):
                    step[place] += value * update["weight"] / total
            old = tiny_tensors.read(folder / f"weights-{round_}.safetensors")
            return made(folder, round_ + 1, [a + b for a, b in zip(old, step, strict=True)], step)
        case "export":
            out = Path(request["out"])
            out.mkdir()
            model = out / "model.safetensors"
            model.write_bytes((folder / f"weights-{request['version']}.safetensors").read_bytes())
            return {"files": [{"name": model.name, **described(model)}]}
    raise ValueError(f"unknown request {request['do']}")


def main() -> None:
    """Answer line after line."""
    print("aggregate is up", file=sys.stderr, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"ok": True, **answer(request)}
        except ValueError as error:
            reply = {"ok": False, "error": "invalid", "detail": str(error)}
        except OSError as error:
            reply = {"ok": False, "error": "full", "detail": str(error)}
        print(json.dumps({"id": request["id"], **reply}), flush=True)


main()
