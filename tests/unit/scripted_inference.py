"""An inference executor without torch.

Modes: `good`, `repeats` (asks and sends everything twice), `crash` (at its second slice), `idle` (ends at once).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from scripted_executor import Session


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--mode", "--socket", "--work-dir", "--job"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    work_dir = Path(options.work_dir)
    job = json.loads(options.job)
    config = job["executor"]["config"]
    session = Session(options.socket)
    assert job["executor"]["class"] == "inference" and config["output"]["kind"] == "classes"
    print("fetched", [entry["path"] for entry in session.good("/resources/fetch", config["model"]["artifact"])])
    if options.mode == "idle":
        return 0
    times = 2 if options.mode == "repeats" else 1
    count = 0
    while True:
        answers = [session.good("/resources/fetch", config["data"]) for _ in range(times)]
        assert all([entry["path"] for entry in found] == [entry["path"] for entry in answers[0]] for found in answers)
        if not answers[0]:
            print("no more slices after", count, flush=True)
            return 0
        count += 1
        if options.mode == "crash" and count == 2:
            raise RuntimeError("no such layer")
        metadata = answers[0][0]["metadata"]
        session.good("/status/send", {"status": {"batch_size": metadata["rows"], "round_time": 5}})
        (work_dir / "out").mkdir(exist_ok=True)
        lines = [json.dumps({"row": metadata["first_row"] + row}) for row in range(2)]
        (work_dir / "out" / "r.jsonl").write_text("\n".join(lines) + "\n")
        for _ in range(times):
            session.good("/resources/send", {"resource": config["results"], "path": "out/r.jsonl"})
        (work_dir / "out" / "r.jsonl").unlink()


if __name__ == "__main__":
    sys.exit(main())
