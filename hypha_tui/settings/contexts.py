"""Clusters by name: which node each is reached through, as whom, and how careful to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from hypha_tui.client.endpoint import Connection, Endpoint, resolve
from hypha_tui.settings.config import Context, Settings


class Contexts:
    """The contexts of a configuration."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment

    @property
    def names(self) -> list[str]:
        """Their names."""
        return sorted(self._settings.contexts)

    def first(self, flags: Connection) -> tuple[Context, Endpoint]:
        """What to open at the start. Flags beat a context that a flag names, that beats the environment, that beats
        the context of the file."""
        settings = self._settings
        name = settings.config.context
        if name and settings.origins["context"] != "flag" and (_says(flags) or _says(self._from_environment())):
            name = ""
        context, found = settings.context_named(name)
        if not name:
            return context, _careful(resolve(flags, self._environment), context)
        found_endpoint = resolve(_over(flags, found.connection()), self._without_connection())
        return context, _careful(found_endpoint, context)

    def endpoint(self, name: str) -> tuple[Context, Endpoint]:
        """A context by its name; ConfigError where there is none, PeerUnreachable where its node does not run."""
        context, found = self._settings.context_named(name)
        if not name:
            return context, _careful(resolve(Connection(), self._environment), context)
        return context, _careful(resolve(found.connection(), self._without_connection()), context)

    def _from_environment(self) -> Connection:
        return Connection().with_environment(self._environment)

    def _without_connection(self) -> dict[str, str]:
        """The environment without what says where to connect: the context says it."""
        said = {f"HYPHA_TUI_{field.name.upper()}" for field in fields(Connection)}
        return {name: value for name, value in self._environment.items() if name not in said}


def _careful(endpoint: Endpoint, context: Context) -> Endpoint:
    return replace(endpoint, readonly=context.readonly)


def _says(connection: Connection) -> bool:
    return bool(connection.node) or connection.state_dir is not None


def _over(upper: Connection, lower: Connection) -> Connection:
    """Fields of `upper`, and of `lower` where it has none. A node and a state folder stand for each other."""
    if _says(upper):
        lower = replace(lower, node="", state_dir=None)
    values = {field.name: getattr(upper, field.name) or getattr(lower, field.name) for field in fields(Connection)}
    return Connection(**values)
