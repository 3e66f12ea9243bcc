"""The configuration of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.config import Loaded, known_keys, load
from node.errors import ConfigError

KEYS = st.sampled_from([*known_keys(), "cpu", "class", "job", "model", "type", "resources", "worker", "typo"])

# The documented worker file: `work_dir` stands below [resources], the telemetry keys below the last [[executors]].
DOCUMENTED_WORKER = """\
# TLS Configuration
cert_pem = "/etc/hypha/certs/worker-cert.pem"
key_pem = "/etc/hypha/certs/worker-key.pem"
trust_pem = "/etc/hypha/certs/ca-bundle.pem"

# Network
gateway_addresses = [
    "/ip4/203.0.113.50/tcp/4001",
    "/ip4/198.51.100.25/tcp/4001"
]

listen_addresses = [
    "/ip4/0.0.0.0/tcp/0"
]

relay_circuit = true

# Resources
[resources]
cpu = 32
memory = 128
storage = 1000
gpu = 48  # 2x A6000 GPUs

# Work Directory
work_dir = "/var/hypha/work"

# Executors
[[executors]]
class = "train"
name = "diloco-transformer"
runtime = "process"
cmd = "uv"
args = ["run", "--socket", "{SOCKET_PATH}", "--work-dir", "{WORK_DIR}", "--job", "{JOB_JSON}"]

[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"

# Telemetry
telemetry_endpoint = "http://otel-collector:4318"
telemetry_protocol = "http/protobuf"

[telemetry_attributes]
"service.name" = "hypha-worker"
"worker.instance" = "worker-gpu-01"
"""

DOCUMENTED_DATA = """\
cert_pem = "/etc/hypha/certs/data-cert.pem"
key_pem = "/etc/hypha/certs/data-key.pem"
trust_pem = "/etc/hypha/certs/ca-bundle.pem"
crls_pem = "/etc/hypha/crls.pem"  # Optional
gateway_addresses = ["/ip4/203.0.113.50/tcp/4001"]
listen_addresses = ["/ip4/0.0.0.0/tcp/6000"]
external_addresses = []
exclude_cidr = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8"]
dataset_path = "/var/hypha/datasets/imagenet-1k"
telemetry_endpoint = "http://otel-collector:4318"
telemetry_protocol = "http/protobuf"
telemetry_sampler = "traceidratio"
telemetry_sample_ratio = 0.1

[telemetry_headers]
"Authorization" = "Bearer <api-token>"
"X-Scope-OrgID" = "<tenant-id>"

[telemetry_attributes]
"service.name" = "hypha-data"
"data.dataset" = "imagenet-1k"
"""

DOCUMENTED_SCHEDULER = """\
cert_pem = "/etc/hypha/scheduler-cert.pem"
status_bridge = "127.0.0.1:61000"

[scheduler.job]
dataset = { dataset = "imagenet-1k" }

[scheduler.job.model]
repository = "microsoft/resnet-50"
filenames = ["config.json", "model.safetensors"]
type = "vision-classification"
input_names = ["pixel_values"]

[scheduler.job.rounds]
update_rounds = 100
avg_samples_between_updates = 1200

[scheduler.job.inner_optimizer]
learning-rate = 0.001

[scheduler.job.outer_optimizer]
learning_rate = 0.7
momentum = 0.9

[scheduler.job.resources]
num_workers = 4
worker = [{ type = "GPU", min = 10.0 }, { kind = "diloco-transformer" }]
parameter_server = { cpu = 1.0, memory = 2.0 }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def failure(folder: Path, text: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), env or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def from_env(**variables: str) -> Loaded:
    return load(None, variables)


def test_the_documented_worker_file_loads_unmodified(tmp_path: Path) -> None:
    config = load(write(tmp_path, DOCUMENTED_WORKER), {}).config
    assert config.work_dir == Path("/var/hypha/work")
    assert config.resources.gpu == 48
    assert [(executor.class_, executor.name, executor.runtime) for executor in config.executors] == [
        ("train", "diloco-transformer", "process"),
        ("aggregate", "parameter-server", "parameter-server"),
    ]
    assert config.telemetry_endpoint == "http://otel-collector:4318"
    assert config.telemetry_attributes["service.name"] == "hypha-worker"


def test_the_documented_data_file_loads_unmodified(tmp_path: Path) -> None:
    config = load(write(tmp_path, DOCUMENTED_DATA), {}).config
    assert config.dataset_folders == [Path("/var/hypha/datasets/imagenet-1k")]
    assert config.telemetry_headers["Authorization"] == "Bearer <api-token>"
    assert config.telemetry_sample_ratio == 0.1
    assert config.relay_circuit


def test_the_documented_scheduler_file_loads_unmodified(tmp_path: Path) -> None:
    job = load(write(tmp_path, DOCUMENTED_SCHEDULER), {}).config.scheduler.job
    assert job is not None
    assert (job.dataset, job.num_workers, job.worker.gpu) == ("imagenet-1k", 4, 10.0)


def test_several_datasets_are_a_list_and_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    config = load(write(tmp_path, 'dataset_path = ["a", "/b"]\ncert_pem = "certs/n-cert.pem"'), {}).config
    assert config.dataset_folders == [tmp_path / "a", Path("/b")]
    assert config.cert_pem == tmp_path / "certs/n-cert.pem"


def test_folders_of_exports_start_at_the_file_and_no_password_is_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('[exports]\ncsv = "csv"\ntensorboard = ""\nwandb = "p"\nname = "n"\n')
    config = load(path, {"HYPHA_EXPORTS__MLFLOW": "https://tracker"}).config
    assert config.name == "n"
    assert (config.exports.csv, config.exports.tensorboard) == (tmp_path / "csv", None)
    assert (config.exports.wandb, config.exports.mlflow) == ("p", "https://tracker")
    with pytest.raises(ConfigError, match="an address with credentials"):
        load(path, {"HYPHA_EXPORTS__MLFLOW": "https://me:secret@tracker"})


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_known_key(tmp_path: Path) -> None:
    text = failure(tmp_path, 'name = "a"\n\n[resources]\ncpu = 1\nmemry = 3\n')
    assert text.endswith("node.toml: line 5: resources.memry: unknown key; did you mean memory?")
    text = failure(tmp_path, 'gateway_adresses = ["/ip4/203.0.113.50/tcp/1"]\n')
    assert text.endswith("line 1: gateway_adresses: unknown key; did you mean gateway_addresses?")
    text = failure(tmp_path, '[[executors]]\nclass = "a"\nname = "b"\n[[executors]]\nclass = "a"\nnmae = "b"\n')
    assert text.endswith("line 6: executors[1].nmae: unknown key; did you mean name?")
    assert "line 3: scheduler.job.model.repositry" in failure(
        tmp_path, '[scheduler.job]\n# repositry =\nmodel = { type = "torch", repositry = "x" }\n'
    )
    assert "known keys: " in failure(tmp_path, "[offer]\nzzz = 1\n")


def test_a_wrong_value_is_named_with_its_line(tmp_path: Path) -> None:
    assert failure(tmp_path, '[resources]\ncpu = "many"\n').endswith(
        "line 2: resources.cpu: expected float | null, not 'many'"
    )
    assert "line 1: dataset_path[1]: expected str, not 3" in failure(tmp_path, 'dataset_path = ["a", 3]')
    assert "line 1: telemetry_protocol: invalid enum value 'udp'" in failure(tmp_path, 'telemetry_protocol = "udp"')
    assert "line 2: listen_addresses: address '/ip4/1.2.3/tcp/1'" in failure(
        tmp_path, 'name = "x"\nlisten_addresses = ["/ip4/1.2.3/tcp/1"]'
    )
    assert "line 1: roles: 'wroker' is not a role; did you mean worker?" in failure(tmp_path, 'roles = ["wroker"]')
    assert "'10.0.0.0/99' is not a network" in failure(tmp_path, 'exclude_cidr = ["10.0.0.0/99"]')
    assert "line 1: telemetry_headers: expected str, got array" in failure(tmp_path, "[telemetry_headers]\na = [1]")
    assert "executors[0].cmd: is missing" in failure(tmp_path, '[[executors]]\nclass = "a"\nname = "b"')
    assert "executors[0].name: is missing" in failure(tmp_path, '[[executors]]\nclass = "a"')
    assert "two datasets are called 'a'" in failure(tmp_path, 'dataset_path = ["x/a", "y/a"]')
    assert "ftp:/host/a is not a folder" in failure(tmp_path, 'dataset_path = "ftp://host/a"')
    assert "would show what may be secret" in failure(tmp_path, 'dataset_path = "s3://k:secret@bucket/a"')
    assert "two datasets are called 'a'" in failure(tmp_path, 'dataset_path = ["x/a", "s3://bucket/a"]')
    assert "fetch.stores[0]: is not an address" in failure(tmp_path, '[fetch]\nstores = ["bucket"]')
    assert "-1.0 is out of bounds" in failure(tmp_path, "[resources]\ngpu = -1.0")


def test_text_that_is_not_toml_is_told_with_its_place(tmp_path: Path) -> None:
    assert "not valid TOML: " in failure(tmp_path, 'name = "a\n')
    assert "line 1" in failure(tmp_path, 'name = "a\n')


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"configuration file .*/none\.toml does not exist") as caught:
        load(tmp_path / "none.toml", {})
    assert caught.value.exit_code == 2
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 8"):
        load(tmp_path / "latin.toml", {})


def test_variables_beat_the_file_and_flags_beat_both(tmp_path: Path) -> None:
    path = write(tmp_path, 'name = "file"\nwork_dir = "/file"\n[resources]\ncpu = 1\nmemory = 4\n')
    env = {"HYPHA_NAME": "env", "HYPHA_WORK_DIR": "/env", "HYPHA_RESOURCES__CPU": "2.5", "HYPHA_RELAY_CIRCUIT": "false"}
    loaded = load(path, env, {"name": "flag", "mdns": None})
    config = loaded.config
    assert (config.name, config.work_dir, config.relay_circuit) == ("flag", Path("/env"), False)
    assert (config.resources.cpu, config.resources.memory) == (2.5, 4)
    assert loaded.origins == {
        "name": "--name",
        "work_dir": "HYPHA_WORK_DIR",
        "relay_circuit": "HYPHA_RELAY_CIRCUIT",
        "resources.cpu": "HYPHA_RESOURCES__CPU",
        "resources.memory": str(path),
    }


def test_a_dataset_can_be_named_by_a_variable(tmp_path: Path) -> None:
    env = {"HYPHA_DATASET_PATH": "/var/hypha/datasets/wikitext-103"}
    assert load(write(tmp_path, DOCUMENTED_DATA), env).config.dataset_folders == [Path(env["HYPHA_DATASET_PATH"])]
    assert from_env(HYPHA_DATASET_PATH='["/a", "/b"]').config.dataset_folders == [Path("/a"), Path("/b")]


def test_a_variable_with_digits_is_text_where_text_is_meant() -> None:
    config = from_env(
        HYPHA_NAME="007", HYPHA_STATE_DIR="2024", HYPHA_MDNS="false", HYPHA_TELEMETRY_SAMPLE_RATIO="0.5"
    ).config
    assert (config.name, config.state_dir, config.mdns) == ("007", Path.cwd() / "2024", False)
    assert config.telemetry_sample_ratio == 0.5


def test_lists_and_jobs_can_be_reached_by_variables(tmp_path: Path) -> None:
    config = from_env(HYPHA_GATEWAY_ADDRESSES="/ip4/203.0.113.1/tcp/1,/ip4/203.0.113.2/tcp/1").config
    assert config.gateway_addresses == ["/ip4/203.0.113.1/tcp/1", "/ip4/203.0.113.2/tcp/1"]
    env = {"HYPHA_SCHEDULER__JOB__ROUNDS__UPDATE_ROUNDS": "7"}
    job = load(write(tmp_path, DOCUMENTED_SCHEDULER), env).config.scheduler.job
    assert job is not None and job.rounds.update_rounds == 7
    env = {"HYPHA_EXECUTORS__0__CMD": "python3"}
    assert load(write(tmp_path, DOCUMENTED_WORKER), env).config.executors[0].cmd == "python3"
    assert "the list has 2 elements" in failure(tmp_path, DOCUMENTED_WORKER, {"HYPHA_EXECUTORS__5__CMD": "x"})


def test_a_wrong_variable_or_flag_is_named_instead_of_a_line() -> None:
    with pytest.raises(ConfigError, match=r"^HYPHA_RESOURCES__CPU: resources\.cpu: expected float"):
        from_env(HYPHA_RESOURCES__CPU="many")
    with pytest.raises(ConfigError, match=r"^HYPHA_RESOURCES__CPUS: resources\.cpus: unknown key"):
        from_env(HYPHA_RESOURCES__CPUS="1")
    with pytest.raises(ConfigError, match=r"^--listen: listen_addresses: address 'x'"):
        load(None, {}, {"listen_addresses": ["x"]})


def test_an_unknown_variable_is_warned_about_but_not_those_of_the_terminal() -> None:
    loaded = from_env(HYPHA_NAM="x", HYPHA_TUI_NODE="x", HYPHA_DEBUG="1", HYPHA_CONFIG="x", OTHER="x")
    assert loaded.warnings == ["HYPHA_NAM is not a setting; did you mean HYPHA_NAME?"]


def test_the_variables_of_opentelemetry_override_the_telemetry_keys(tmp_path: Path) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x,b=c",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b",
        "OTEL_SERVICE_NAME": "mine",
    }
    loaded = load(write(tmp_path, DOCUMENTED_DATA), {**env, "HYPHA_TELEMETRY_ENDPOINT": "http://third:1"})
    config = loaded.config
    assert config.telemetry_endpoint == "http://other:4318"
    assert config.telemetry_headers == {"Authorization": "Bearer x", "b": "c"}
    assert (config.telemetry_protocol, config.telemetry_sample_ratio) == ("http/json", 0.5)
    assert config.telemetry_attributes == {"service.name": "mine", "data.dataset": "imagenet-1k", "a": "b"}
    assert loaded.origins["telemetry_endpoint"] == "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_telemetry_tables_may_be_one_string(tmp_path: Path) -> None:
    text = 'telemetry_headers = "a=b, c = d%3D"\ntelemetry_attributes = "x=y"\n'
    config = load(write(tmp_path, text), {}).config
    assert (config.telemetry_headers, config.telemetry_attributes) == ({"a": "b", "c": "d="}, {"x": "y"})
    assert "line 1: telemetry_headers: is not of the form k=v,k=v" in failure(tmp_path, 'telemetry_headers = "ab"')


def test_a_variable_does_not_make_the_file_less_strict(tmp_path: Path) -> None:
    assert "expected bool, not 'yes'" in failure(tmp_path, 'relay_circuit = "yes"', {"HYPHA_NAME": "x"})


def test_a_node_listens_on_this_machine_only_unless_told_otherwise() -> None:
    """U77."""
    assert from_env().config.listen_addresses == ["/ip4/127.0.0.1/tcp/0"]


def test_reading_a_configuration_imports_nothing_heavy() -> None:
    code = (
        "import sys, node.config; node.config.load(None, {}); "
        "print([m for m in ('aiohttp', 'cryptography', 'torch', 'numpy', 'textual', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@given(
    st.recursive(
        st.sampled_from([0, -1, 1.5, True, "", "x", "/ip4/1.2.3.4/tcp/1"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=12,
    ),
    KEYS,
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_is_loaded_or_refused_in_one_line(tmp_path: Path, value: object, key: str) -> None:
    path = write(tmp_path, f"{key} = {toml(value)}\n")
    try:
        load(path, {})
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(error).startswith(f"{path}: line 1: ")


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')


def test_the_state_lies_where_the_terminal_looks_for_it(tmp_path: Path) -> None:
    assert load(None, {"XDG_STATE_HOME": str(tmp_path)}).config.state_dir == tmp_path / "hypha"
    assert load(None, {"XDG_STATE_HOME": "relative"}).config.state_dir == Path("~/.local/state/hypha").expanduser()
