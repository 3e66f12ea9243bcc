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


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    folder = Path(request["folder"])
    match request["do"]:
        case "prepare":
            weights = folder / "weights-0.safetensors"
            tiny_tensors.write(weights, [0.0] * 4)
            return {"version": 0, "digest": digest(weights), "schema": {}, "size_bytes": weights.stat().st_size}
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
            weights, steps = (folder / f"{name}-{round_ + 1}.safetensors" for name in ("weights", "step"))
            tiny_tensors.write(steps, step)
            tiny_tensors.write(weights, [a + b for a, b in zip(old, step, strict=True)])
            return {
                "version": round_ + 1,
                "digest": digest(weights),
                "step_digest": digest(steps),
                "step_bytes": steps.stat().st_size,
                "weights_bytes": weights.stat().st_size,
            }
        case "export":
            out = Path(request["out"])
            out.mkdir()
            model = out / "model.safetensors"
            model.write_bytes((folder / f"weights-{request['version']}.safetensors").read_bytes())
            file = {"name": model.name, "size_bytes": model.stat().st_size, "sha256": digest(model)}
            return {"files": [file]}
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
