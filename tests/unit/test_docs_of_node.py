"""What the documents say about settings and commands is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node import cli
from node.config import known_keys
from node.jobspec import parse_job

DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_of_the_configuration_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    for key in known_keys():
        assert f"`{key}`" in text or f"[{key}]" in text or f"[{key}." in text, key


def test_the_documented_job_is_one() -> None:
    (toml,) = re.findall(r"^```toml\n(.*?)^```", (DOCS / "configuration.md").read_text(), re.DOTALL | re.MULTILINE)
    spec = parse_job(toml)
    assert (spec.num_workers, spec.dataset, spec.worker.gpu) == (4, "wikitext-103", 10)


def test_the_documented_certificate_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "certificates.md").read_text()
    commands = re.findall(r"^hypha-node (cert [^#\n]+)", text, re.MULTILINE) + re.findall(
        r"`hypha-node (cert .+?)`", text
    )
    assert len(commands) == 6
    for command in commands:
        assert cli.run(command.split()) == 0, command
    assert {f"{name}-cert.pem" for name in ("gw", "w1", "ada", "acme-ca")} <= {
        path.name for path in (tmp_path / "pki").iterdir()
    }
