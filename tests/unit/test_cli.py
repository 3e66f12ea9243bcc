"""The `hypha-node` command line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node import cli
from node.commands.init import TEMPLATE
from node.config import NodeConfig, load
from tests.support import make_authority, make_identity_in

ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in list(os.environ):
        if variable.startswith(("HYPHA_", "OTEL_")):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """The configurations that nodes were started with: the daemon itself is left out."""
    configs: list[NodeConfig] = []
    module: Any = type(sys)("node.daemon")

    def run(config: NodeConfig, identity: object) -> int:
        configs.append(config)
        return 0

    module.run = run
    monkeypatch.setitem(sys.modules, "node.daemon", module)
    monkeypatch.setattr("node.daemon", module, raising=False)
    return configs


def fails(capsys: Captured, *arguments: str) -> tuple[int, str]:
    """The exit code and the one line that a command line which fails leaves on stderr."""
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hypha-node: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return code, err.removeprefix("hypha-node: ").rstrip("\n")


def certified(folder: Path, text: str = "") -> Path:
    make_authority(folder)
    make_identity_in(folder, "w1")
    path = folder / "node.toml"
    names = {"cert_pem": "w1-cert.pem", "key_pem": "w1-key.pem", "trust_pem": "w1-trust.pem"}
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in names.items()) + text)
    return path


def test_the_version_is_told_without_loading_anything_heavy() -> None:
    code = (
        "import sys; from node import cli; cli.run(['--version']); "
        "print([m for m in ('aiohttp', 'cryptography', 'torch', 'numpy', 'textual', 'msgspec', 'asyncio', 'rich') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["hypha-node 0.1.0", "[]"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rle", "worker"], "Unknown option: --rle. Did you mean --role?; see hypha-node --help"),
        (["prob"], "unknown argument 'prob'; did you mean probe?"),
        (["--listen"], "Parameter --listen requires an argument; see hypha-node --help"),
        (["cert", "node"], 'Command "cert node" parameter NAMES requires an argument; see hypha-node --help'),
        (["cert", "root", "--days", "x"], 'Invalid value for --days: unable to convert "x" into int; see'),
        (["config", "chek"], 'Unknown command "chek". Did you mean "check"?'),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(capsys: Captured, arguments: list[str], told: str) -> None:
    code, line = fails(capsys, *arguments)
    assert code == 2
    assert line.startswith(told)


def test_a_node_without_a_role_or_with_a_wrong_one_does_not_start(capsys: Captured, tmp_path: Path) -> None:
    path = str(certified(tmp_path))
    assert fails(capsys, "--config", path) == (
        2,
        "no role; give --role with one or more of gateway, scheduler, worker, data",
    )
    code, line = fails(capsys, "--config", path, "--role", "worker,dat")
    assert (code, line) == (2, "--role: roles: 'dat' is not a role; did you mean data?")


def test_flags_reach_the_node_and_beat_the_file(started: list[NodeConfig], tmp_path: Path) -> None:
    path = certified(tmp_path, 'roles = ["data"]\nname = "file"\nlisten_addresses = ["/ip4/127.0.0.1/tcp/1"]\n')
    arguments = ["--config", str(path), "--role", "gateway,worker", "--role", "data", "--name", "flag", "--no-mdns"]
    arguments += ["--listen", "/ip4/127.0.0.1/tcp/0", "--listen", "/ip6/::1/tcp/0"]
    arguments += ["--gateway", "https://gw:1", "--state-dir", "state"]
    assert cli.run(arguments) == 0
    (config,) = started
    assert config.roles == ["gateway", "worker", "data"]
    assert (config.name, config.mdns, config.state_dir) == ("flag", False, tmp_path / "state")
    assert config.listen_addresses == ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"]
    assert config.gateway_addresses == ["https://gw:1"]


def test_a_node_is_called_as_its_certificate_unless_told_otherwise(
    started: list[NodeConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPHA_CONFIG", str(certified(tmp_path)))
    assert cli.run(["--role", "worker"]) == 0
    assert started[0].name == "w1"
    assert started[0].mdns


@pytest.mark.parametrize("role", ["gateway", "scheduler", "worker", "data"])
def test_a_missing_certificate_is_told_alike_in_all_roles(capsys: Captured, tmp_path: Path, role: str) -> None:
    """U70."""
    path = certified(tmp_path)
    (tmp_path / "w1-cert.pem").unlink()
    code, line = fails(capsys, "--config", str(path), "--role", role)
    assert code == 2
    assert line == f"certificate {tmp_path}/w1-cert.pem does not exist; make one with `hypha-node cert node NAME`"
    code, line = fails(capsys, "--role", role)
    assert code == 2
    assert line.startswith("no certificate: cert_pem, key_pem, trust_pem not set; make one with `hypha-node cert root`")


def test_a_node_does_not_run_with_the_certificate_of_an_operator(capsys: Captured, tmp_path: Path) -> None:
    path = certified(tmp_path)
    make_identity_in(tmp_path, "ada", role="operator")
    path.write_text(path.read_text().replace("w1-", "ada-"))
    code, line = fails(capsys, "--config", str(path), "--role", "worker", "--validate")
    assert (code, "ada-cert.pem is an operator's certificate; a node needs one" in line) == (2, True)


def test_validate_checks_everything_and_starts_nothing(
    capsys: Captured, started: list[NodeConfig], tmp_path: Path
) -> None:
    path = certified(tmp_path, 'roles = ["data"]\ndataset_path = "digits"\n')
    assert fails(capsys, "--config", str(path), "--validate") == (2, f"dataset folder {tmp_path}/digits does not exist")
    (tmp_path / "digits").mkdir()
    assert cli.run(["--config", str(path), "--validate"]) == 0
    assert capsys.readouterr().out == "configuration is valid\n"
    assert started == []


def test_init_writes_a_file_that_works_with_the_certificates_it_names(
    capsys: Captured, started: list[NodeConfig], tmp_path: Path
) -> None:
    assert cli.run(["init", "hypha.toml"]) == 0
    for command in ("root", "org"):
        assert cli.run(["cert", command, "--dir", "certs"]) == 0
    assert cli.run(["cert", "node", "node", "--dir", "certs"]) == 0
    assert cli.run(["--config", "hypha.toml"]) == 0
    assert started[0].roles == ["worker"]
    capsys.readouterr()
    (tmp_path / "hypha.toml").write_text("mine")
    assert fails(capsys, "init", "hypha.toml") == (2, "hypha.toml exists already; --force replaces it")
    assert (tmp_path / "hypha.toml").read_text() == "mine"
    assert cli.run(["init", "hypha.toml", "--force"]) == 0
    assert "roles" in (tmp_path / "hypha.toml").read_text()


def test_every_commented_setting_of_init_is_one_that_loads(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=[a-z_]+ = |\[)", "", TEMPLATE.format(file="x"), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(text)
    loaded = load(tmp_path / "all.toml", {})
    held = {re.split(r"[.\[]", key)[0] for key in loaded.origins}
    assert held == set(NodeConfig.__struct_fields__) - {"scheduler"}
    assert loaded.config.executors[0].args[-1] == "{JOB_JSON}"


def test_config_check_tells_the_key_and_the_line(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[resources]\nmemry = 3\n")
    assert fails(capsys, "config", "check", "bad.toml") == (
        2,
        "bad.toml: line 2: resources.memry: unknown key; did you mean memory?",
    )
    assert fails(capsys, "config", "check", "none.toml") == (2, "configuration file none.toml does not exist")


def test_config_check_warns_about_files_that_are_elsewhere(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('cert_pem = "/no/c.pem"\nkey_pem = "/no/k.pem"\ntrust_pem = "/no/t.pem"\n')
    assert cli.run(["config", "check", "node.toml"]) == 0
    out, err = capsys.readouterr()
    assert out == "node.toml: configuration is valid\n"
    assert err.startswith("hypha-node: certificate /no/c.pem does not exist")


def test_config_show_tells_where_each_value_comes_from_and_hides_secrets(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text(
        'name = "a"\ntelemetry_headers = { Authorization = "Bearer hush" }\n[resources]\ncpu = 1\n'
        "[scheduler.job]\n"
        'dataset = "digits"\nmodel = { type = "torch", token = "hush" }\n'
        "rounds = { update-rounds = 3, avg_samples_between_updates = 8 }\n"
        "inner_optimizer = { learning-rate = 1e-3 }\nouter_optimizer = { learning_rate = 0.7, momentum = 0.9 }\n"
        'resources = { num_workers = 2, worker = [{ type = "GPU", min = 1 }] }\n'
    )
    monkeypatch.setenv("HYPHA_RESOURCES__GPU", "24")
    assert cli.run(["config", "show", "node.toml"]) == 0
    out = capsys.readouterr().out
    assert "hush" not in out
    rows = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in out.splitlines())}
    assert rows["name"] == ['"a"', "node.toml"]
    assert rows["resources.cpu"] == ["1.0", "node.toml"]
    assert rows["resources.gpu"] == ["24.0", "HYPHA_RESOURCES__GPU"]
    assert rows["offer.price"] == ["0.0", "default"]
    assert rows["telemetry_headers"] == ["(hidden)", "node.toml"]
    assert rows["scheduler.job.model.token"] == ["(hidden)", "node.toml"]
    assert rows["scheduler.job.rounds.update_rounds"] == ["3", "node.toml"]
    assert rows["scheduler.job.num_workers"] == ["2", "node.toml"]
    assert rows["scheduler.job.worker.gpu"] == ["1.0", "node.toml"]
    assert rows["scheduler.job.min_workers"] == ["1", "default"]


def test_certificates_are_made_and_revoked_from_scripts(capsys: Captured, tmp_path: Path) -> None:
    place = ["--dir", "pki", "--org", "acme"]
    for command in (["root"], ["org"]):
        assert cli.run(["cert", *command, *place]) == 0
    assert capsys.readouterr().out == "pki/acme-root-ca-cert.pem\npki/acme-ca-cert.pem\n"
    assert cli.run(["cert", "node", "w1", "w2", *place, "--days", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.fullmatch(r"12D3KooW\w+ pki/(w\d)-cert\.pem", line)[1] for line in lines] == ["w1", "w2"]  # type: ignore[index]
    assert cli.run(["cert", "operator", "ada", "--dir", "pki"]) == 0
    assert cli.run(["cert", "revoke", "w1", "ada", "--dir", "pki"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "pki/acme-crl.pem"
    code, line = fails(capsys, "cert", "node", "w1", "--dir", "pki")
    assert (code, line) == (2, "pki/w1-cert.pem exists already; --renew keeps the key, --force makes a new one")
    assert cli.run(["cert", "node", "w1", "--dir", "pki", "--renew"]) == 0
    assert capsys.readouterr().out.split()[0] == lines[0].split()[0]


def test_an_interrupt_a_gone_reader_and_a_fault_of_ours_have_exit_codes_without_traceback(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(error: BaseException) -> None:
        def raise_it(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(cli, "app", raise_it)

    fault(KeyboardInterrupt())
    assert cli.run([]) == 130
    fault(RuntimeError("boom\nbang"))
    assert fails(capsys) == (1, "internal error: RuntimeError: boom bang; HYPHA_DEBUG=1 shows where")
    monkeypatch.setenv("HYPHA_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.run([])


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from node.cli import main; main()"
    reader = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    reader.wait(timeout=30)
    done = subprocess.run(
        [sys.executable, "-c", code, "config", "show"],
        stdout=reader.stdin,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    reader.stdin.close()
    assert (done.returncode, done.stderr) == (141, b"")


def test_probe_calls_with_our_certificate_and_says_who_answers(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.commands import probe
    from node.network.probe import ProbeResult

    called: list[tuple[str, str]] = []

    async def call(identity: Any, address: Any) -> ProbeResult:
        called.append((identity.name, str(address)))
        return ProbeResult(
            address=str(address),
            peer_id="12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
            name="gw",
            seconds=0.0125,
            certificate_days=29.6,
            roles=["gateway", "data"],
            version="0.1.0",
            addresses=["/ip4/203.0.113.50/tcp/4001"],
        )

    monkeypatch.setattr(probe, "call", call)
    path = certified(tmp_path)
    assert cli.run(["probe", "https://203.0.113.50:4001", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    assert called == [("w1", "/ip4/203.0.113.50/tcp/4001")]
    for told in ("12D3KooWDpJ7As7", "gw", "gateway, data", "12.5 ms", "30 days left"):
        assert told in out


def test_probing_what_does_not_answer_is_one_line_with_address_and_cause(capsys: Captured, tmp_path: Path) -> None:
    """U6."""
    path = certified(tmp_path)
    with socket.socket() as taken:
        # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        code, line = fails(capsys, "probe", f"/ip4/127.0.0.1/tcp/{port}", "--config", str(path))
    assert code == 3
    assert f"127.0.0.1 port {port}" in line
    assert "refused" in line.lower()
    code, line = fails(capsys, "probe", "127.0.0.1:1", "--config", str(path))
    assert (code, line[:46]) == (2, "address '127.0.0.1:1' is neither a multiaddr n")
