"""What one job does otherwise than another: settings, not text. Spelling, order and explicit defaults do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypha_tui.client.tomledit import value_text
from node.jobdocument import Setting, settings_of
from node.jobspec import JobSpec, job_from
from node.schema import Origin


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, as it was and as it is. None: the other kind of job has it, or nothing is set."""

    key: str
    old: Setting
    new: Setting

    @property
    def words(self) -> tuple[str, str]:
        """Both values as a job file writes them; `-` for none."""
        return _words(self.old), _words(self.new)


def difference(old: JobSpec, new: JobSpec) -> list[Change]:
    """The settings in which `new` differs from `old`, in the order of a job file. Secrets are not compared."""
    before, after = settings_of(old), settings_of(new)
    keys = [*after, *(key for key in before if key not in after)]
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def spec_of(document: Mapping[str, Any]) -> JobSpec:
    """A job from the table that its scheduler gives."""
    return job_from(document, Origin("the earlier job"))


def _words(value: Setting) -> str:
    return "-" if value is None or value == "" or value == [] else value_text(value)
