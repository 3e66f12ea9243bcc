"""The wheel holds what it needs: installed into an empty environment, both commands start."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_the_wheel_installs_into_an_empty_environment_and_both_commands_start(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("hypha_tui-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    themes = {f"hypha_tui/themes_data/{path.name}" for path in (ROOT / "themes").glob("*.toml")}
    assert themes and themes <= names
    assert "hypha_tui/demo_job/model/config.json" in names

    environment = tmp_path / "environment"
    venv.EnvBuilder(with_pip=True).create(environment)
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*install, *constraints, str(wheel)], check=True, timeout=240, cwd=tmp_path)
    for name in ("hypha-node", "hypha-tui"):
        done = subprocess.run([environment / "bin" / name, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.strip().split()[-1][0].isdigit()
        helped = subprocess.run([environment / "bin" / name, "--help"], capture_output=True, text=True, cwd=tmp_path)
        assert helped.returncode == 0
    listed = subprocess.run([*install[:3], "list"], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers"} & {line.split()[0].lower() for line in listed.stdout.splitlines()}
    program = "import hypha_tui.screens, hypha_tui.themes as t; print(len(t.Themes().found))"
    loaded = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    assert int(loaded.stdout) >= len(themes)
