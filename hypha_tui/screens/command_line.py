"""What `:` lines do, and the words that Tab completes them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypha_tui.keys.keymap import SCREENS, find_command
from hypha_tui.screens.panels import panels_of, take_off
from hypha_tui.store.cluster import KINDS
from hypha_tui.store.lookup import find, words
from node.errors import HyphaError

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.main import MainScreen

SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "hz": ("0", "0.2", "1", "2", "4", "10"),
    "wide": ("on", "off"),
    "glyphs": ("unicode", "block", "ascii"),
    "mouse": ("on", "off"),
}
MOST_FILES: Final = 200
NO_FILES: Final = "a browser that may only look has no files of this machine"


class CommandLine:
    """Runs a line on the main screen. What is not certain is not run."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self._app = app
        self._main = main

    def run(self, line: str) -> None:
        """A line, without the colon."""
        word, _, rest = line.partition(" ")
        command, matching = find_command(word)
        if command is None:
            names = ", ".join(one.name for one in matching)
            self._main.say(f"{word}: which of {names}?" if matching else f"no command {word!r}; ? lists them")
            return
        rest = rest.strip()
        if command.completes == "file" and not self._app.has_files:
            self._main.say(NO_FILES)
            return
        if command.name in SCREENS:
            self._main.action_show(command.name)
            if rest:
                self._main.once_ready(lambda: self._filter(rest))
            return
        run: Callable[[str], None] = getattr(self, f"do_{command.name}")
        run(rest)

    def _filter(self, words: str) -> None:
        self._main.view.set_filter(words)
        self._main.show_status()

    def offer(self, kind: str, begun: str) -> Sequence[str]:
        """The words that an argument of this kind may be."""
        app = self._app
        match kind:
            case "object":
                return words(app.store)
            case "file":
                return files(begun) if app.has_files else []
            case "theme":
                return sorted(app.available_themes)
            case "context":
                return app.contexts.names
            case "panel":
                return sorted(panels_of(self._main.view))
            case "on":
                return ["on"]
            case "setting":
                name, space, _ = begun.partition(" ")
                return (
                    [f"{name} {value}" for value in SETTINGS.get(name, ())]
                    if space
                    else [f"{one} " for one in SETTINGS]
                )
            case _:
                return words(app.store, [kind] if kind in KINDS else [])

    # ---- one method for each command of the table: do_NAME ----------------------------------------------

    def do_job(self, rest: str) -> None:
        """Inspect a job."""
        self.with_object(rest, ["job"], self._main.open_inspector)

    def do_inspect(self, rest: str) -> None:
        """Inspect anything."""
        self.with_object(rest, KINDS, self._main.open_inspector)

    def do_cancel(self, rest: str) -> None:
        """Cancel a job, which asks first."""
        self._act("cancel", "job", rest)

    def do_pause(self, rest: str) -> None:
        """Pause a job."""
        self._act("pause", "job", rest)

    def do_resume(self, rest: str) -> None:
        """Go on with a job."""
        self._act("resume", "job", rest)

    def do_release(self, rest: str) -> None:
        """Release a lease, which asks first. To renew one is nobody's act: leases are renewed while they are held."""
        self._act("release", "lease", rest)

    def do_cordon(self, rest: str) -> None:
        """Cordon a worker."""
        self._act("cordon", "peer", rest)

    def do_uncordon(self, rest: str) -> None:
        """Uncordon a worker."""
        self._act("uncordon", "peer", rest)

    def do_drain(self, rest: str) -> None:
        """Drain a worker, which asks first."""
        self._act("drain", "peer", rest)

    def _act(self, name: str, kind: str, rest: str) -> None:
        self.with_object(rest, [kind], lambda kind, id_: self._main.acting.act(name, [(kind, id_)]))

    def do_submit(self, rest: str) -> None:
        """The form for a job."""
        self._main.open_form(rest)

    def do_diff(self, rest: str) -> None:
        """A file beside a job."""
        if not rest:
            self._main.say("diff FILE: a job's TOML file, or a folder with a job.toml in it")
            return
        from hypha_tui.screens.comparing import compare_file

        selected = self._main.view.selected
        job_id = selected[1] if selected is not None and selected[0] == "job" else ""
        self._app.start(partial(compare_file, self._app, Path(rest), job_id), "diff")

    def do_ctx(self, rest: str) -> None:
        """Another cluster."""
        if rest:
            self._app.switch_context(rest)
        else:
            names = ", ".join(self._app.contexts.names)
            here = self._app.context.name or "none of them"
            self._main.say(f"contexts: {names}; this is {here}" if names else "config.toml has no contexts")

    def do_theme(self, rest: str) -> None:
        """Another theme."""
        self._main.say(self._app.theme_choice.set(rest))

    def do_panel(self, rest: str) -> None:
        """A panel off or back, for good."""
        main, screen = self._main, self._main.current
        known = sorted(panels_of(main.view))
        if rest not in known:
            main.say(f"panels here: {', '.join(known)}" if known else "this screen has no panels")
            return
        kept = self._app.kept_layout.toggled(screen, rest)
        self._app.keep_layout(kept)
        take_off(main.view, kept.hidden[screen])
        main.call_after_refresh(main.sync, None)
        main.say(f"panel {rest} is {'off' if rest in kept.hidden[screen] else 'back'}")

    def do_save(self, rest: str) -> None:
        """Write what is shown to a file."""
        if rest:
            self._main.copying.export(rest)
        else:
            self._main.action_export()

    def do_readonly(self, rest: str) -> None:
        """From here on nothing is changed."""
        self._main.say(
            self._app.set_readonly() if rest in ("", "on") else "readonly only goes on; start anew to end it"
        )

    def do_set(self, rest: str) -> None:
        """How this terminal draws."""
        name, _, value = rest.partition(" ")
        value = value.strip()
        try:
            self._main.say(self._app.set_setting(name, value))
        except HyphaError as error:
            self._main.say(str(error))

    def do_record(self, rest: str) -> None:
        """Keep what comes in."""
        self._main.say(self._app.tapes.record(rest))

    def do_replay(self, rest: str) -> None:
        """Show a recording."""
        words = self._app.tapes.show(rest)
        self._app.main.say(words)

    def do_seek(self, rest: str) -> None:
        """A moment of the recording."""
        self._main.say(self._app.tapes.seek(rest))

    def do_speed(self, rest: str) -> None:
        """How fast it runs."""
        self._main.say(self._app.tapes.set_speed(rest))

    def do_help(self, rest: str) -> None:
        """Keys for this place."""
        self._main.action_help()

    def do_q(self, rest: str) -> None:
        """Quit."""
        self._app.exit()

    def with_object(self, word: str, kinds: Sequence[str], then: Callable[[str, str], None]) -> None:
        """Go on with the one object that `word` names; of several, with none. Filters hide nothing here."""
        found = find(self._app.store, word, kinds)
        what = kinds[0] if len(kinds) == 1 else "object"
        if len(found) == 1:
            then(*found[0])
        elif found:
            self._main.say(f"{len(found)} {what}s are called {word!r}; give the id")
        else:
            self._main.say(f"no {what} {word!r}")


def files(begun: str) -> list[str]:
    """Files and folders that a begun path may be; folders end with a slash."""
    folder, _, name = begun.rpartition("/")
    base = Path(f"{folder}/" if folder or begun.startswith("/") else ".").expanduser()
    prefix = begun[: len(begun) - len(name)]
    found: list[str] = []
    try:
        for one in base.iterdir():
            if one.name.startswith(name) and (name.startswith(".") or not one.name.startswith(".")):
                found.append(f"{prefix}{one.name}{'/' if one.is_dir() else ''}")
            if len(found) >= MOST_FILES:
                break
    except OSError:
        return []
    return sorted(found)
