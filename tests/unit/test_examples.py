"""The examples load, and what the documents say of keys, metrics, routes and requests is so."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hypha_tui.cli import app as tui
from hypha_tui.client.jobfile import pack, read_job
from node.api.problems import STATUS_OF_CODE
from node.api.routes import ROUTES
from node.config import load
from node.jobspec import (
    AggregationSpec,
    CheckpointSpec,
    InnerSpec,
    JobTable,
    ModelSpec,
    OuterSpec,
    PartitionSpec,
    Price,
    ResourcesSpec,
    ResourceTable,
    Rounds,
    SyncSpec,
    parse_job,
)
from node.scheduler import leases
from node.scheduler.order import BATCH_SIZE
from node.telemetry import Metrics
from node.wire import BindMount

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
JOBS = sorted([*EXAMPLES.rglob("job.toml"), ROOT / "hypha_tui" / "demo_job" / "job.toml"])
NODES = sorted(EXAMPLES.glob("nodes/*.toml"))


def doc(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def section(text: str, heading: str) -> str:
    """A document from a heading to the next one of any depth."""
    found = re.search(rf"^#+ {re.escape(heading)}[^\n]*\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found.group(1)


def first_cells(text: str) -> Iterator[str]:
    """The code words in the first cells of a text's table rows."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


def defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Default by field; NODEFAULT for one that must be given."""
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_every_example_job_can_be_submitted(path: Path) -> None:
    spec = parse_job(path.read_text(), str(path))
    body = pack(read_job(path.parent))
    assert body.name == spec.name
    if spec.model.path:
        assert json.loads((path.parent / spec.model.path / "config.json").read_text())["model_type"]
    if spec.model.type == "torch":
        compile((path.parent / "model.py").read_text(), "model.py", "exec")


def test_upstreams_documented_file_is_a_configuration_and_a_job() -> None:
    path = EXAMPLES / "upstream" / "scheduler.toml"
    spec = parse_job(path.read_text(), str(path))
    assert load(path, {}).config.scheduler.job == spec
    assert (spec.model.type, spec.worker.gpu, spec.worker_executor) == (
        "image-classification",
        10,
        "diloco-transformer",
    )


@pytest.mark.parametrize("path", NODES, ids=lambda path: path.stem)
def test_every_example_configuration_loads(path: Path) -> None:
    config = load(path, {}).config
    assert config.roles == [path.stem]
    assert config.cert_pem is not None


def test_the_examples_executors_are_named_as_their_job_asks() -> None:
    config = load(EXAMPLES / "executor" / "worker.toml", {}).config
    spec = parse_job((EXAMPLES / "executor" / "job.toml").read_text())
    assert spec.worker_executor in [executor.name for executor in config.executors]
    assert config.executors[0].name == "diloco-transformer"


@pytest.mark.parametrize(
    ("heading", "kind", "elsewhere"),
    [
        (
            "The job file",
            JobTable,
            {
                *("model", "preprocessor", "rounds", "inner_optimizer", "outer_optimizer", "resources"),
                *("sync", "aggregation", "checkpoint", "partition", "bind_mounts"),
            },
        ),
        ("`[model]` and `[preprocessor]`", ModelSpec, set()),
        ("`[rounds]`", Rounds, set()),
        ("`[inner_optimizer]`", InnerSpec, set()),
        ("`[outer_optimizer]`", OuterSpec, set()),
        ("`[resources]`", ResourcesSpec, set()),
        ("`[sync]`", SyncSpec, set()),
        ("`[aggregation]`", AggregationSpec, set()),
        ("`[checkpoint]`", CheckpointSpec, set()),
        ("`[partition]`", PartitionSpec, set()),
        ("`[[bind_mounts]]`", BindMount, set()),
    ],
)
def test_jobs_md_has_exactly_the_keys_of_a_job(heading: str, kind: type[msgspec.Struct], elsewhere: set[str]) -> None:
    documented = set(first_cells(section(doc("jobs"), heading)))
    assert documented == set(defaults(kind)) - elsewhere


def test_the_defaults_in_jobs_md_are_those_of_the_spec() -> None:
    kinds = {"rounds": Rounds, "inner_optimizer": InnerSpec, "outer_optimizer": OuterSpec, "resources": ResourcesSpec}
    for table, kind in kinds.items():
        for line in section(doc("jobs"), f"`[{table}]`").splitlines():
            if not line.startswith("| `"):
                continue
            names, default = (cell.strip("| ") for cell in line.split(" | ")[:2])
            for name in re.findall(r"`([^`]+)`", names):
                actual = defaults(kind)[name]
                if default == "required":
                    assert actual is msgspec.NODEFAULT, name
                elif re.fullmatch(r"[`\[]*[\d.][\d., e-]*[\]`]*", default) and name != "max_batch_size":
                    written = tomllib.loads(f"x = {default.strip('`')}")["x"]
                    assert written == (list(actual) if isinstance(actual, tuple) else getattr(actual, "bid", actual)), (
                        name
                    )
                else:
                    assert actual is not msgspec.NODEFAULT, name
    assert f"| `max_batch_size` | {BATCH_SIZE} |" in doc("jobs")
    for name in (*defaults(ResourceTable), *defaults(Price)):
        assert re.search(rf"\b{name}\b", section(doc("jobs"), "`[resources]`"))


def test_the_times_in_the_documents_are_those_of_the_code() -> None:
    renewed_s = leases.LEASE_S * leases.RENEW_AT
    assert f"leases last {leases.LEASE_S:g} s and are renewed after {renewed_s:g}" in doc("jobs")
    assert f"lasts {leases.LEASE_S:g} s, renewed after {renewed_s:g}" in doc("operations")


def test_operations_md_has_every_metric() -> None:
    documented = set(re.findall(r"`(hypha_[a-z_]+)", section(doc("operations"), "Metrics")))
    counted = {series.name + ("_total" if series.grows else "") for series in Metrics().series()}
    assert documented == counted | {"hypha_data_fetch_duration"}


def test_api_md_has_every_route_and_code() -> None:
    text = section(doc("api"), "The operator API")
    for route in ROUTES:
        assert route.path.removeprefix("/api/v1") in text, route.path
    assert set(STATUS_OF_CODE) <= set(first_cells(section(doc("api"), "Problems")))


def test_api_md_has_every_command() -> None:
    text = section(doc("api"), "Commands for scripts")
    for name in tui:
        if not name.startswith("-"):
            assert re.search(rf"\b{name}\b", text), name


def test_the_executor_in_api_md_is_the_one_in_the_examples() -> None:
    assert f"```python\n{(EXAMPLES / 'executor' / 'shrink.py').read_text()}```" in doc("api")


def test_links_between_the_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", EXAMPLES / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", path.read_text()):
            made_elsewhere = target.endswith((".svg", "keys.md"))
            assert target.startswith("http") or made_elsewhere or (path.parent / target).exists(), (
                f"{path.name}: {target}"
            )
