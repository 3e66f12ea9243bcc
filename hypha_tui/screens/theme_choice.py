"""Which theme is in use: the first one, another by name or the next, and one whose file is edited meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.app import App

from hypha_tui.settings.folders import config_folder
from hypha_tui.themes import DEFAULT, WITHOUT_COLOUR, Themes, has_few_colours

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp


class ThemeChoice:
    """The themes of one app. `problems`: lines about files and names that cannot be used, from the start."""

    def __init__(self, app: HyphaApp, wanted: str, environment: Mapping[str, str], *, has_colour: bool) -> None:
        self._app = app
        self._has_colour = has_colour
        own = config_folder(environment)
        self._themes = Themes(None if own is None else own / "themes")
        self.problems = list(self._themes.problems)
        self._register()
        is_known = wanted in app.available_themes
        if wanted and not is_known:
            self.problems.append(f"no theme {wanted!r}")
        default = WITHOUT_COLOUR if has_few_colours(environment) else DEFAULT
        app.theme = (wanted if is_known else default) if has_colour else WITHOUT_COLOUR

    @property
    def signs(self) -> Mapping[str, str]:
        """The signs that the theme in use replaces."""
        return self._themes.signs.get(self._app.theme, {})

    def next(self) -> str:
        """Change to the next of our themes; what to say about it."""
        self._read()
        names = self._themes.names
        at = names.index(self._app.theme) if self._app.theme in names else -1
        return self._change(names[(at + 1) % len(names)])

    def set(self, name: str) -> str:
        """Change to a theme by name; what to say about it."""
        self._read()
        return self._change(name)

    def follow(self) -> None:
        """The file of the theme in use may have been edited: draw with what it says now."""
        if self._themes.has_changed(self._app.theme):
            self._read()
            self._app.mutate_reactive(App.theme)

    def _change(self, name: str) -> str:
        if name not in self._app.available_themes:
            return f"no theme {name!r}; there are {', '.join(self._themes.names)}"
        if not self._has_colour:
            return "NO_COLOR is set: colours stay off"
        self._app.theme = name
        return f"theme {name}"

    def _read(self) -> None:
        """Take up files that are new or changed; a broken one is told, and nothing else."""
        self._themes.read()
        self._register()
        if self._themes.problems:
            self._app.main.say(self._themes.problems[0])

    def _register(self) -> None:
        for theme in self._themes.found.values():
            self._app.register_theme(theme)
