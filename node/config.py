"""Every setting of a node. Flags beat the environment (`HYPHA_*`, `OTEL_*`), that beats the file, that the defaults."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from node import addresses
from node.errors import ConfigError
from node.jobspec import JobSpec, job_from
from node.mounts import check_allowed
from node.overrides import apply_environment, hoist, pairs
from node.schema import Origin, Strict, convert, dotted, nearest, parse_toml, read_text
from node.storeurl import checked_dataset_url, is_store_url, name_in

CACHE = "hypha-cache"
ROLES = ("gateway", "scheduler", "worker", "data")
DEFAULT_LISTEN = "/ip4/127.0.0.1/tcp/0"
DEFAULT_STATE_DIR = "~/.local/state/hypha"
SECRET_KEYS = ("telemetry_headers", "token")
"""Last parts of keys whose values are never shown."""
FLAGS = {"roles": "--role", "listen_addresses": "--listen", "gateway_addresses": "--gateway", "mdns": "--[no-]mdns"}
"""Flags of the command line that are not called as their key."""
FREE_TABLES = ("telemetry_headers", "telemetry_attributes")
_PATH_KEYS = ("state_dir", "cert_pem", "key_pem", "trust_pem", "crls_pem", "work_dir", "results_path")
Strategy = Literal["flexible", "whole"]
JobCode = Literal["sandboxed", "allow", "refuse"]
RuntimeKind = Literal["process", "parameter-server"]
Protocol = Literal["grpc", "http/protobuf", "http/json"]


class ResourcesConfig(Strict, frozen=True):
    """Upper limits or overrides of what the node finds: cores, and GB (10^9 bytes)."""

    cpu: float | None = None
    memory: float | None = None
    storage: float | None = None
    gpu: float | None = None


class OfferConfig(Strict, frozen=True):
    """Asking price and floor an hour; `whole` puts all of the worker into one offer."""

    price: float = 0.0
    floor: float = 0.0
    strategy: Strategy = "flexible"


class ExecutorConfig(Strict, frozen=True):
    """A program that runs tasks of one class. In `args`, `{SOCKET_PATH}`, `{WORK_DIR}`, `{JOB_JSON}` are filled in."""

    class_: str = msgspec.field(name="class")
    name: str
    runtime: RuntimeKind = "process"
    cmd: str = ""
    args: list[str] = []


class CacheConfig(Strict, frozen=True):
    """A worker's cache of slices and models: its size, and how much it leaves free on the disk, in GB (10^9 bytes)."""

    size: float = 20.0
    keep_free: float = 1.0


class MountConfig(Strict, frozen=True):
    """A folder or file of this machine that jobs may mount, with all below it."""

    path: Path
    read_only: bool = True


class FetchConfig(Strict, frozen=True):
    """What a worker fetches from elsewhere for its tasks: from which hosts of the web (`*.example.org` for all below),
    whether also from addresses that are not of the public net, and from which addresses in object storage, with all
    below, with the credentials in this node's environment."""

    hosts: list[str] = msgspec.field(default_factory=lambda: ["huggingface.co", "*.huggingface.co", "*.hf.co"])
    private: bool = False
    stores: list[str] = []


class ExportsConfig(Strict, frozen=True):
    """Where a scheduler writes the metrics of its jobs: folders, a tracking URI, a project. Keys come from the
    environment alone."""

    tensorboard: Path | None = None
    csv: Path | None = None
    mlflow: str = ""
    wandb: str = ""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the scheduler role: a job to run at once."""

    job: JobSpec | None = None


class _SchedulerTable(Strict, frozen=True):
    job: dict[str, Any] | None = None


class _Settings(Strict, frozen=True):
    """The keys of a file, but for `scheduler`."""

    name: str = ""
    roles: list[str] = []
    state_dir: Path = Path(DEFAULT_STATE_DIR)
    cert_pem: Path | None = None
    key_pem: Path | None = None
    trust_pem: Path | None = None
    crls_pem: Path | None = None
    gateway_addresses: list[str] = []
    listen_addresses: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_LISTEN])
    external_addresses: list[str] = []
    exclude_cidr: list[str] = []
    relay_circuit: bool = True
    mdns: bool = True
    telemetry_endpoint: str = ""
    telemetry_protocol: Protocol = "http/protobuf"
    telemetry_sampler: str = ""
    telemetry_sample_ratio: float = 1.0
    telemetry_headers: dict[str, str] = {}
    telemetry_attributes: dict[str, str] = {}
    dataset_path: list[str] = []
    results_path: Path | None = None
    work_dir: Path | None = None
    resources: ResourcesConfig = ResourcesConfig()
    offer: OfferConfig = OfferConfig()
    executors: list[ExecutorConfig] = []
    cache: CacheConfig = CacheConfig()
    fetch: FetchConfig = FetchConfig()
    mounts: list[MountConfig] = []
    job_code: JobCode | None = None
    status_bridge: str = ""
    exports: ExportsConfig = ExportsConfig()
    operators: list[str] = []


class NodeConfig(_Settings, frozen=True):
    """All settings, checked. Paths are absolute: relative ones in a file start at the file's folder."""

    scheduler: SchedulerConfig = SchedulerConfig()

    @property
    def jobs_dir(self) -> Path:
        """Where a worker puts the work directories of its tasks."""
        return self.work_dir or self.state_dir / "work"

    @property
    def cache_dir(self) -> Path:
        """Where a node keeps what it has fetched, by digest."""
        return self.jobs_dir / CACHE

    @property
    def cache_limits(self) -> tuple[int, int]:
        """How many bytes that may be, and how many are left free on the disk."""
        return int(self.cache.size * 10**9), int(self.cache.keep_free * 10**9)

    @property
    def dataset_folders(self) -> list[Path]:
        """The datasets, and folders of datasets, on this machine."""
        return [Path(entry) for entry in self.dataset_path if not is_store_url(entry)]

    @property
    def dataset_urls(self) -> list[str]:
        """The datasets in object storage."""
        return [entry for entry in self.dataset_path if is_store_url(entry)]

    @property
    def own_paths(self) -> list[Path]:
        """What no code of a job may see, wherever it lies: state, work of other tasks, key."""
        return [self.state_dir, self.jobs_dir, *([self.key_pem] if self.key_pem is not None else [])]


class _File(_Settings, frozen=True):
    """All keys that a file may hold."""

    scheduler: _SchedulerTable = _SchedulerTable()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and the origin of each value that is not a default, by dotted key."""

    config: NodeConfig
    origins: dict[str, str]
    warnings: list[str] = []


def known_keys() -> list[str]:
    """The top-level keys of a configuration file."""
    return [field.encode_name for field in msgspec.structs.fields(_File)]


def chosen_file(given: Path | None) -> Path | None:
    """The configuration file: the one given, else the one that HYPHA_CONFIG names, else none."""
    named = os.environ.get("HYPHA_CONFIG")
    return given or (Path(named) if named else None)


def load(
    path: Path | None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read a configuration. `flags` maps keys to values given on the command line; None values are not given."""
    env = os.environ if env is None else env
    source, text = (str(path), read_text(path, "configuration file")) if path else ("configuration", "")
    data = parse_toml(text, source) if path else {}
    data = hoist(data, known_keys())
    origins: dict[str, str] = {}
    _note(origins, data, source)
    data.setdefault("state_dir", _default_state_dir(env))
    _resolve(data, path.absolute().parent if path else Path.cwd())
    origin = Origin(source, text)
    _spell(data, origin)
    convert(_File, data, origin)
    names, warnings = apply_environment(data, env, known_keys())
    for key, value in (flags or {}).items():
        if value is not None:
            data[key] = value
            names[key] = FLAGS.get(key, f"--{key.replace('_', '-')}")
    for key, name in names.items():
        for old in [old for old in origins if old == key or old.startswith((f"{key}.", f"{key}["))]:
            del origins[old]
        origins[key] = name
    origin = Origin(source, text, names=names)
    _spell(data, origin)
    _resolve(data, Path.cwd())
    # variables and flags are text: "2.5" has to do for a number there, and "true" for a boolean
    parsed = convert(_File, data, origin, lax=bool(names))
    job = parsed.scheduler.job
    values = {key: getattr(parsed, key) for key in _Settings.__struct_fields__}
    values["roles"] = list(dict.fromkeys(parsed.roles))
    config = NodeConfig(
        **values,
        scheduler=SchedulerConfig(
            job=None if job is None else job_from(job, origin.inside("scheduler", "job"), lax=bool(names))
        ),
    )
    _check(config, origin)
    return Loaded(config=config, origins=origins, warnings=warnings)


def _default_state_dir(env: Mapping[str, str]) -> str:
    """Where `hypha-tui` looks for the nodes of this user."""
    home = env.get("XDG_STATE_HOME", "")
    return f"{home}/hypha" if home.startswith("/") else DEFAULT_STATE_DIR


def _note(origins: dict[str, str], data: Any, source: str, path: tuple[str | int, ...] = ()) -> None:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            _note(origins, value, source, (*path, key))
    elif isinstance(data, list) and any(isinstance(item, dict) for item in data):
        for index, item in enumerate(data):
            _note(origins, item, source, (*path, index))
    elif path:
        origins[dotted(path)] = source


def _spell(data: dict[str, Any], origin: Origin) -> None:
    """Turn the other accepted forms of a value into the one that the types describe."""
    if isinstance(data.get("dataset_path"), str):
        data["dataset_path"] = [data["dataset_path"]] if data["dataset_path"] else []
    for key in FREE_TABLES:
        value = data.get(key)
        if isinstance(value, str):
            try:
                data[key] = pairs(value)
            except ValueError as error:
                raise origin.error([key], str(error), "write k=v,k=v or a table") from error
        elif isinstance(value, dict):
            data[key] = {
                name: str(item) if isinstance(item, (bool, int, float)) else item for name, item in value.items()
            }
    for key in ("roles", "gateway_addresses", "listen_addresses", "external_addresses", "exclude_cidr", "operators"):
        if isinstance(data.get(key), str):
            data[key] = [part.strip() for part in data[key].split(",") if part.strip()]


def _resolve(data: dict[str, Any], base: Path) -> None:
    """Make the paths absolute: those of the file from its folder, the others from the working directory."""
    for key in _PATH_KEYS:
        if isinstance(data.get(key), (str, Path)) and str(data[key]):
            data[key] = str(base / Path(data[key]).expanduser())
    if isinstance(data.get("exports"), dict):
        folders = {key: data["exports"][key] for key in ("tensorboard", "csv") if data["exports"].get(key) is not None}
        resolved = {
            key: (str(base / Path(path).expanduser()) if path else None) if isinstance(path, (str, Path)) else path
            for key, path in folders.items()
        }
        data["exports"] = {**data["exports"], **resolved}
    mounts = data.get("mounts")
    if isinstance(mounts, list):
        data["mounts"] = [
            {**mount, "path": str(base / Path(mount["path"]).expanduser())}
            if isinstance(mount, dict) and isinstance(mount.get("path"), (str, Path)) and str(mount["path"])
            else mount
            for mount in mounts
        ]
    paths = data.get("dataset_path")
    if isinstance(paths, (str, Path)):
        paths = [paths]
    if isinstance(paths, list) and all(isinstance(path, (str, Path)) for path in paths):
        data["dataset_path"] = [
            str(path) if is_store_url(str(path)) else str(base / Path(path).expanduser()) for path in paths if str(path)
        ]


def _check(config: NodeConfig, origin: Origin) -> None:
    for key in ("gateway_addresses", "listen_addresses", "external_addresses"):
        for address in getattr(config, key):
            try:
                addresses.parse(address)
            except ConfigError as error:
                raise origin.error([key], error.message, error.hint) from error
    for role in config.roles:
        if role not in ROLES:
            close = nearest(role, ROLES)
            raise origin.error(
                ["roles"], f"{role!r} is not a role", f"did you mean {close}?" if close else ", ".join(ROLES)
            )
    for network in config.exclude_cidr:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            raise origin.error(["exclude_cidr"], f"{network!r} is not a network", "write it as 10.0.0.0/8") from error
    if not 0 <= config.telemetry_sample_ratio <= 1:
        raise origin.error(["telemetry_sample_ratio"], f"{config.telemetry_sample_ratio} is not from 0 to 1")
    for key, value in msgspec.structs.asdict(config.resources).items():
        if value is not None and not 0 <= value < 1e12:
            raise origin.error(["resources", key], f"{value} is out of bounds")
    for key in ("price", "floor"):
        if not 0 <= getattr(config.offer, key) < 1e12:
            raise origin.error(["offer", key], f"{getattr(config.offer, key)} is out of bounds")
    if "@" in config.exports.mlflow:
        hint = "put them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise origin.error(["exports", "mlflow"], "an address with credentials would be shown and logged", hint)
    for index, dataset in enumerate(config.dataset_path):
        if is_store_url(dataset):
            try:
                checked_dataset_url(dataset)
            except ConfigError as error:
                raise origin.error(["dataset_path", index], error.message, error.hint) from error
        elif ":/" in dataset:
            hint = "write a folder, or s3://, gs:// or az://bucket/path/name"
            raise origin.error(["dataset_path"], f"{dataset} is not a folder", hint)
    for index, address in enumerate(config.fetch.stores):
        if not is_store_url(address) or "@" in address or "?" in address:
            hint = "write s3://, gs:// or az://bucket, or a folder in it"
            raise origin.error(["fetch", "stores", index], "is not an address in object storage", hint)
    check_allowed([(mount.path, mount.read_only) for mount in config.mounts], config.own_paths, origin.inside("mounts"))
    for index, executor in enumerate(config.executors):
        if executor.runtime == "process" and not executor.cmd:
            raise origin.error(["executors", index, "cmd"], "is missing", "a process executor needs the program to run")
    names = [name_in(path) for path in config.dataset_path]
    for name in names:
        if names.count(name) > 1:
            raise origin.error(
                ["dataset_path"], f"two datasets are called {name!r}", "a dataset's name is its folder's name"
            )
