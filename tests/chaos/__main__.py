"""Chaos on a real cluster: `python -m tests.chaos --seeds 20`.

Each seed starts a cluster with mutual TLS (gateway, scheduler, data node, workers), runs a job to its end while a
seeded schedule kills, stops, cuts off and slows every role, and then checks what must hold: the job ended, every row
counted once, every version the same bytes everywhere, nothing left behind, and the loss of the undisturbed run at as
many samples. Exit code 1 when a seed fails; its line says how to repeat it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from tests.chaos.checks import Outcome, loss_at, loss_gap
from tests.chaos.storm import Run, Settings, run, settings_of


def line(made: Run, base: Outcome) -> str:
    """One line about a seed."""
    out = made.outcome
    loss = loss_gap(out.losses, base.losses)
    rate = (out.rounds - 1) / out.seconds if out.seconds else 0.0
    undisturbed = (base.rounds - 1) / base.seconds
    verdict = "ok" if not out.faults else "FAILED"
    return (
        f"seed {made.seed:>4}  {verdict:<6} faults {len(made.harm):>3}  rounds {out.rounds:>3} (void {out.void})"
        f"  samples {out.samples:>6}  loss {loss:+.2%}  commits {rate / undisturbed:.0%}  took {made.took_s:.0f} s"
    )


def table(runs: list[Run], base: Outcome) -> None:
    """Summary of all seeds."""
    outcomes = [made.outcome for made in runs]
    print(f"\nseeds {len(runs)}, of which failed {sum(bool(out.faults) for out in outcomes)}")
    print(f"faults {sum(len(made.harm) for made in runs)}")
    kinds: dict[str, int] = {}
    for made in runs:
        for text in made.harm:
            kind = "cut in halves" if "halves" in text else " ".join(text.split()[2:4])
            kinds[kind] = kinds.get(kind, 0) + 1
    for kind, count in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"  {kind:<28}{count:>5}")
    gaps = [loss_gap(out.losses, base.losses) for out in outcomes if out.losses]
    rates = [(out.rounds - 1) / out.seconds / ((base.rounds - 1) / base.seconds) for out in outcomes if out.seconds]
    if gaps and rates:
        print(f"loss at equal samples: median {statistics.median(gaps):+.2%}, worst {max(gaps, key=abs):+.2%}")
        print(f"commits a minute kept: median {statistics.median(rates):.0%}, worst {min(rates):.0%}")
    replicas = [out.replicas / max(1, out.rounds) / (base.replicas / base.rounds) for out in outcomes]
    print(f"updates a commit kept: median {statistics.median(replicas):.0%}, worst {min(replicas):.0%}")


def repeat(chosen: argparse.Namespace, seed: int) -> str:
    """The command that runs a seed again."""
    words = f"python -m tests.chaos --seed {seed} --seeds 1 --minutes {chosen.minutes:g} --workers {chosen.workers}"
    words += f" --faults-per-minute {chosen.faults_per_minute:g}"
    for name in ("kinds", "roles"):
        words += "".join(f" --{name} {value}" for value in [",".join(getattr(chosen, name))] if value)
    return words + (f" --sync '{chosen.sync}'" if chosen.sync else "")


def sections_of(text: str) -> str:
    """The job's `[sync]` table from `codec=int4,fragments=3,overlap=true`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    lines = [f'{key} = "{value}"' if key == "codec" else f"{key} = {value}" for key, _, value in pairs]
    return "\n".join(["[sync]", *lines])


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--minutes", type=float, default=0.5, help="how long each is disturbed")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--faults-per-minute", type=float, default=10.0)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=[], help="kill,freeze,cut,..")
    parser.add_argument("--roles", type=lambda text: text.split(","), default=[], help="worker,scheduler,..")
    parser.add_argument("--sync", default="", help="of the job: codec=int4,fragments=3,overlap=true")
    chosen = parser.parse_args()
    settings: Settings = settings_of(
        workers=chosen.workers,
        minutes=chosen.minutes,
        faults_a_minute=chosen.faults_per_minute,
        sections=sections_of(chosen.sync),
    )
    settings = replace(settings, kinds=tuple(chosen.kinds), roles=tuple(chosen.roles))

    def tell(text: str) -> None:
        print(text, flush=True)

    undisturbed = run(None, settings, tell=tell)
    base = undisturbed.outcome
    last = loss_at(base.losses, base.samples)
    tell(f"undisturbed: rounds {base.rounds}, samples {base.samples}, loss {last:.4f}, {undisturbed.took_s:.0f} s")
    if base.faults:
        tell("\n".join(base.faults))
        return 1
    runs = []
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        made = run(seed, settings, base=base, tell=tell)
        runs.append(made)
        tell(line(made, base))
        for fault in made.outcome.faults:
            tell(f"    {fault}")
        if made.outcome.faults:
            tell(f"    again: {repeat(chosen, seed)}")
    table(runs, base)
    return int(any(made.outcome.faults for made in runs))


if __name__ == "__main__":
    sys.exit(main())
