"""`hypha-tui` as a process on a real terminal: signals, sizes, locales, a dead link. Asked of its screen, not of it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.terminal.fake_node import FakeNode, serving
from tests.terminal.ptys import in_pty
from tests.terminal.tmux import HAS_TMUX, Tmux, shown


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeNode]:
    """A node that all tests of this file look at."""
    with serving(FakeNode(tmp_path_factory.mktemp("node") / "n.sock")) as found:
        yield found


@pytest.fixture
def reach(node: FakeNode) -> tuple[str, str]:
    return ("--node", f"unix:{node.socket}")


def test_a_storm_of_resizes_ends_right_and_quitting_gives_the_screen_back(
    reach: tuple[str, ...], tmp_path: Path
) -> None:
    """From the first byte on. And below the smallest size it says which size it needs."""
    with in_pty(*reach, home=tmp_path, size=(200, 60)) as terminal:
        terminal.until(lambda: bool(terminal.raw), "first byte")
        for _ in range(25):
            terminal.resize(200, 60)
            terminal.resize(80, 24)
        terminal.wait("[1 Over]", "diloco-7", "live")
        assert "1049" in terminal.screen.modes
        terminal.screen.resize(80, 24)  # it may lose what was drawn on the way to another size and back
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait("[1 Over]", "diloco-7", "live")
        for _ in range(25):
            terminal.resize(200, 60)
            terminal.resize(80, 24)
        terminal.resize(50, 12)
        terminal.wait("needs 60x16, has 50x12")
        terminal.resize(200, 60)
        terminal.wait("[1 Overview]", "8 Node", "diloco-7", "Events")
        assert len(terminal.screen.lines[0]) > 150, "the header is as wide as the terminal"
        terminal.press("\x11")
        assert terminal.end() == 0
        assert terminal.screen.is_restored, terminal.screen.modes


def test_of_two_sizes_the_newer_stays_when_the_second_comes_while_the_first_is_read(
    reach: tuple[str, ...], tmp_path: Path
) -> None:
    """The moment that a storm of resizes hits at random: a signal in the middle of the handler of the one before."""
    between = (
        "import fcntl, struct, sys, termios\n"
        "from hypha_tui import cli\n"
        "from hypha_tui.process.quiet_driver import QuietDriver\n"
        "read = QuietDriver._get_terminal_size\n"
        "def slowly(self):\n"
        "    size = read(self)\n"
        "    if size == (120, 40):\n"
        "        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 100, 0, 0))\n"
        "        for _ in range(1000): pass\n"
        "    return size\n"
        "QuietDriver._get_terminal_size = slowly; cli.main()"
    )
    with in_pty(*reach, home=tmp_path, size=(80, 24), program=("-c", between)) as terminal:
        terminal.wait("[1 Over]", "diloco-7", "live")
        terminal.resize(120, 40)
        terminal.until(lambda: "? keys" in terminal.screen.lines[29], "foot in the thirtieth line")


def test_a_terminal_that_goes_away_leaves_no_process(reach: tuple[str, ...], tmp_path: Path) -> None:
    with in_pty(*reach, home=tmp_path) as terminal:
        terminal.wait("diloco-7")
        terminal.hang_up()
        assert terminal.process.wait(10) == 128 + signal.SIGHUP, "an orderly end, not the kernel's"
        assert not (tmp_path / ".local/state/hypha-tui/crash.log").exists()


def test_a_terminal_that_goes_away_ends_it_below_a_program_that_waits_for_it(
    reach: tuple[str, ...], tmp_path: Path
) -> None:
    """`make demo`: the kernel tells make alone, and make waits for the demo."""
    like_make = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGHUP, lambda *_: None)\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'hypha_tui', *sys.argv[1:]]))"
    )
    with in_pty(*reach, home=tmp_path, program=("-c", like_make)) as terminal:
        terminal.wait("diloco-7")
        terminal.hang_up()
        assert terminal.process.wait(10) == 128 + signal.SIGHUP


def test_a_polite_kill_gives_the_screen_back(reach: tuple[str, ...], tmp_path: Path) -> None:
    with in_pty(*reach, home=tmp_path) as terminal:
        terminal.wait("diloco-7")
        terminal.process.terminate()
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.screen.is_restored


def test_stopping_gives_the_screen_to_the_shell_and_going_on_takes_it_again(
    reach: tuple[str, ...], tmp_path: Path
) -> None:
    with in_pty(*reach, home=tmp_path) as terminal:
        terminal.wait("diloco-7")
        process = psutil.Process(terminal.process.pid)
        terminal.press("\x1a")
        terminal.until(lambda: process.status() == psutil.STATUS_STOPPED, "stop")
        terminal.until(lambda: terminal.screen.is_restored, "restored screen")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait("diloco-7", "[1 Over")
        terminal.press("3")
        terminal.wait("[3 Leases]", "w-ams-00")


def test_in_the_c_locale_only_ascii_is_written(reach: tuple[str, ...], tmp_path: Path) -> None:
    """T37."""
    with in_pty(*reach, home=tmp_path, LC_ALL="C") as terminal:
        terminal.wait("+- Jobs", "> + running", "diloco-7")
        for key, words in (("3", "[3 Leases]"), ("6", "[6 Curves]"), ("?", "Keys on Curves")):
            terminal.press(key)
            terminal.wait(words)
        assert terminal.raw.isascii()


def test_on_the_linux_console_sixteen_colours_and_ascii_do(reach: tuple[str, ...], tmp_path: Path) -> None:
    """T36: the terminal's own colours, and every state by sign and word."""
    with in_pty(*reach, home=tmp_path, TERM="linux", COLORTERM="") as terminal:
        terminal.wait("+ running", "x failed", "live")
        assert terminal.raw.isascii()
        allowed = {"", *map(str, (0, 1, 2, 3, 4, 7, 9, *range(30, 38), 39, *range(40, 48), 49, *range(90, 98)))}
        used = {part for style in terminal.screen.styles for part in style.split(";")}
        assert used <= allowed, used - allowed


def test_without_colour_and_mouse_neither_is_asked_for(reach: tuple[str, ...], tmp_path: Path) -> None:
    """T29, T34."""
    with in_pty(*reach, "--no-mouse", home=tmp_path, NO_COLOR="1") as terminal:
        terminal.wait("● running", "✕ failed")
        terminal.press("3")
        terminal.wait("▌", "w-ams-00", "held")
        colours = re.compile(r"(?:^|;)(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;|$)")
        assert not [style for style in terminal.screen.styles if colours.search(style)]
        assert not {"1000", "1003"} & terminal.screen.modes
        terminal.press(":set mouse on\r")
        terminal.until(lambda: {"1000", "1003"} <= terminal.screen.modes, "mouse codes")
        terminal.press(":set mouse off\r")
        terminal.until(lambda: not {"1000", "1003"} & terminal.screen.modes, "end of mouse codes")
        terminal.press("\x11")
        assert terminal.end() == 0
        assert terminal.screen.is_restored, terminal.screen.modes


def test_a_link_that_is_killed_is_told_at_once_and_comes_back(tmp_path: Path) -> None:
    """T50: with the age of what is still shown. Within 2 s: the least of three, which a busy machine can meet."""
    socket, took = tmp_path / "n.sock", []
    with ExitStack() as stack:
        with serving(FakeNode(socket)):
            terminal = stack.enter_context(in_pty("--node", f"unix:{socket}", home=tmp_path))
            terminal.wait("diloco-7", "live")
            terminal.press("3")
            terminal.wait("[3 Leases]", "w-ams-00")
            styles = set(terminal.screen.styles)
            killed = time.monotonic()
        terminal.wait("stale", "trying again within", "w-ams-00", within_s=20.0)
        took.append(time.monotonic() - killed)
        terminal.until(lambda: re.search(r"this is \d+s old", terminal.screen.text) is not None, "age")
        assert terminal.screen.styles - styles, "what is shown is dimmed"
        for _ in range(2):
            with serving(FakeNode(socket)):
                terminal.until(lambda: "trying again" not in terminal.screen.text, "end of the banner", 20.0)
                terminal.wait("live", "w-ams-00")
                killed = time.monotonic()
            terminal.wait("stale", "trying again within", within_s=20.0)
            took.append(time.monotonic() - killed)
        assert min(took) <= 2.0, took


def test_something_that_breaks_inside_is_one_line_and_a_file(reach: tuple[str, ...], tmp_path: Path) -> None:
    broken = (
        "from hypha_tui import cli; from hypha_tui.screens.main import MainScreen\n"
        "def action_next_theme(self): raise ValueError('no such colour')\n"
        "MainScreen.action_next_theme = action_next_theme; cli.main()"
    )
    with in_pty(*reach, home=tmp_path, program=("-c", broken)) as terminal:
        terminal.wait("diloco-7")
        terminal.press("t")
        assert terminal.end() == 1
        assert terminal.screen.is_restored
        told = [line for line in terminal.screen.lines if line]
        assert told[0].startswith("hypha-tui: the terminal broke: ValueError: no such colour; the details are in")
        assert len(told) <= 2, "one line, which may be broken in two by the terminal"
        assert "in action_next_theme" in (tmp_path / ".local/state/hypha-tui/crash.log").read_text()


@pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed")
def test_escape_acts_at_once_in_tmux(reach: tuple[str, ...]) -> None:
    """T49: no more than 120 ms later than any other key: the least of five each, which a busy machine can meet."""
    with shown(*reach, size=(80, 24)) as tmux:
        tmux.wait("diloco-7", "[1 Over]")
        opening, closing = [], []
        for _ in range(5):
            opening.append(_took(tmux, "?", lambda text: "Keys on Overview" in text))
            closing.append(_took(tmux, "Escape", lambda text: "Keys on Overview" not in text))
        assert min(closing) - min(opening) <= 0.12, (opening, closing)


def _took(tmux: Tmux, key: str, done: Callable[[str], bool]) -> float:
    """Seconds from a key to what it leads to."""
    pressed = time.monotonic()
    tmux.press(key)
    while not done(tmux.text):
        assert time.monotonic() - pressed < 10.0, tmux.text
    return time.monotonic() - pressed
