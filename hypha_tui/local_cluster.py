"""A whole cluster on this machine: throw-away authority, real `hypha-node` processes, mutual TLS on loopback ports.

The demo and the tests run on it. Everything it makes lies in one folder; everything it starts ends with it, also when
this process is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from node import version
from node.errors import HyphaError

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 6.0
NODE = [sys.executable, "-m", "node.cli"]
ANY_PORT = "/ip4/127.0.0.1/tcp/0"
LAUNCHER = Path(version.__file__).with_name("worker") / "launcher.py"


@dataclass
class LocalNode:
    """One running `hypha-node`."""

    name: str
    roles: str
    folder: Path
    command: list[str]
    process: subprocess.Popen[bytes]
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def log_path(self) -> Path:
        """What it wrote to stderr."""
        return self.folder / "node.log"

    @property
    def state_dir(self) -> Path:
        """Its state, with `operator.json` in it."""
        return self.folder / "state"

    @property
    def address(self) -> str:
        """Its multiaddr."""
        return str(self.info["addresses"][0])

    @property
    def peer_id(self) -> str:
        """Who it is."""
        return str(self.info["peer_id"])

    @property
    def socket(self) -> str:
        """Its operator socket."""
        return str(self.info["socket"])

    def last_lines(self, count: int = 5) -> str:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-count:])


class LocalCluster:
    """Nodes on loopback with an authority of their own. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, LocalNode] = {}
        self._runtime: Path | None = None

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def certificates(self) -> Path:
        """Where the authority and the certificates lie."""
        return self.folder / "certificates"

    @property
    def runtime(self) -> Path | None:
        """Where its nodes' sockets lie, while it runs."""
        return self._runtime

    def certificate_flags(self, name: str = "operator") -> list[str]:
        """Flags of `hypha-tui` that present the certificate `name`."""
        base = self.certificates / name
        return ["--cert", f"{base}-cert.pem", "--key", f"{base}-key.pem", "--trust", f"{base}-trust.pem"]

    def make_authority(self, nodes: Sequence[str]) -> None:
        """A root, an organisation, a certificate for each node and one for the operator."""
        where = ["--dir", str(self.certificates), "--org", "demo"]
        for words in (["root"], ["org"], ["node", *nodes], ["operator", "operator"]):
            command("cert", *words, *where)

    def launch(
        self, name: str, roles: str, *, config: str = "", gateways: Sequence[str] = (), port: int = 0
    ) -> LocalNode:
        """Start a node without waiting for it; `config` is more TOML for its configuration file."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        base = self.certificates / name
        settings = [f'{key}_pem = "{base}-{key}.pem"' for key in ("cert", "key", "trust")]
        (folder / "node.toml").write_text("\n".join([*settings, config, ""]))
        arguments = [*NODE, "--role", roles, "--name", name, "--config", str(folder / "node.toml")]
        arguments += ["--state-dir", str(folder / "state"), "--listen", f"/ip4/127.0.0.1/tcp/{port}", "--no-mdns"]
        for address in gateways:
            arguments += ["--gateway", address]
        node = LocalNode(name, roles, folder, arguments, self._spawn(arguments, folder / "node.log"))
        self.nodes[name] = node
        return node

    def start(self, name: str, roles: str, *, config: str = "", gateways: Sequence[str] = ()) -> LocalNode:
        """Start a node and wait until it serves."""
        node = self.launch(name, roles, config=config, gateways=gateways)
        self.wait_ready(node)
        return node

    def wait_ready(self, *nodes: LocalNode) -> None:
        """Wait until each of these serves; raises with the last lines of its log where one does not."""
        deadline = time.monotonic() + READY_WITHIN_S
        for node in nodes:
            while not is_ready(node):
                if node.process.poll() is not None:
                    raise HyphaError(f"{node.name} ended with exit code {node.process.returncode}: {node.last_lines()}")
                if time.monotonic() > deadline:
                    raise HyphaError(f"{node.name} is not ready after {READY_WITHIN_S:.0f} s: {node.last_lines()}")
                time.sleep(0.02)

    def restart(self, name: str) -> LocalNode:
        """Start a node that has ended again, with the same state and at the port where others know it."""
        node = self.nodes[name]
        listen = node.command.index("--listen") + 1
        if node.info and node.command[listen] == ANY_PORT:
            node.command[listen] = node.address
        node.info = {}
        node.process = self._spawn(node.command, node.log_path)
        self.wait_ready(node)
        return node

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would."""
        process = self.nodes[name].process
        process.kill()
        process.wait(STOP_WITHIN_S)

    def stop(self) -> dict[str, int]:
        """End every node: SIGTERM, then SIGKILL for what is late. Exit codes by name."""
        running = [node for node in self.nodes.values() if node.process.poll() is None]
        for node in running:
            node.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        for node in running:
            try:
                node.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait(STOP_WITHIN_S)
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)
            self._runtime = None
        return {name: node.process.returncode for name, node in self.nodes.items()}

    def _spawn(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        # A session of its own keeps the terminal's Ctrl-C to us; the launcher has it killed when we die. A folder of
        # its own for sockets: what a killed node leaves there goes away with the cluster.
        if self._runtime is None:
            self._runtime = Path(tempfile.mkdtemp(prefix="hypha-run-"))
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        with log.open("ab") as output:
            return subprocess.Popen(
                [*launcher, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self._runtime), "TMPDIR": str(self._runtime)},
            )

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def command(*arguments: str) -> str:
    """Run `hypha-node` with these arguments; its output. Raises with its own error line."""
    with subprocess.Popen([*NODE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=300)
        except BaseException:
            # asked to end and not killed, so that the processes of its own are gone when it is
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if process.returncode:
        raise HyphaError(f"hypha-node {' '.join(arguments[:2])} failed: {err.strip()}")
    return out


def is_ready(node: LocalNode) -> bool:
    """Whether this start of the node has told where it listens; fills in `info`."""
    try:
        info = json.loads((node.state_dir / "operator.json").read_text())
    except (OSError, ValueError):
        return False
    if info.get("pid") != node.process.pid:
        return False
    node.info = info
    return True
