"""The key table: what binds where, presets, a user's own keys, the page made from it, and keys that wait for more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hypha_tui.keys.completion import complete
from hypha_tui.keys.keymap import COMMANDS, KEYS, PLACES, Key, clashes, find_command
from hypha_tui.keys.names import parse, shown
from hypha_tui.keys.page import page
from hypha_tui.keys.pending import NEXT_DIGIT_S, PENDING_S, SCREEN_DIGIT_S, Held, Pending, Typed
from hypha_tui.keys.presets import PRESETS, Keymap, PresetName, clash_notice, keymap_for
from hypha_tui.widgets import bars
from node.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "keys.md"
ASKS_FIRST = {"act", "new_job", "submit"}
"""Actions that open a menu or a form: nothing has happened yet when they are done."""


def singles(keys: tuple[Key, ...] = KEYS) -> list[tuple[str, Key]]:
    return [(single, key) for key in keys for one in key.keys.split(",") for single in one.split()]


def test_the_page_of_keys_is_the_one_that_the_table_makes() -> None:
    """Where this fails: `python -m hypha_tui.keys.keymap > docs/keys.md`."""
    assert DOCS.read_text() == page()


def test_every_scope_is_a_place_and_every_action_has_an_id_of_its_own() -> None:
    assert {key.scope for key in KEYS} <= set(PLACES)
    ids = [key.id for key in KEYS]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_no_key_means_two_things_in_one_place(preset: PresetName) -> None:
    assert keymap_for(preset, {}).clashes() == []


def test_presets_name_keys_that_there_are() -> None:
    assert {id_ for preset in PRESETS.values() for id_ in preset.keys} <= {key.id for key in KEYS}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_nothing_that_changes_the_cluster_is_on_a_plain_letter_or_an_easy_slip(preset: PresetName) -> None:
    """T24: but for keys that only open a menu or a form."""
    for single, key in singles(keymap_for(preset, {}).keys):
        if key.danger and key.action.split("(")[0] not in ASKS_FIRST:
            assert len(single) > 1
            assert single not in ("ctrl+d", "ctrl+k", "delete", "backspace")
        if key.danger and key.scope != "form":
            assert single in ("x", "a", "f4")


def test_the_keys_avoid_those_of_multiplexers_and_terminals() -> None:
    """T44."""
    for single, _ in singles():
        assert single not in {f"ctrl+{letter}" for letter in "absojhmiz"}
        assert not single.startswith("alt+")


def test_clashes_name_both_ids_but_not_those_on_purpose_or_in_other_places() -> None:
    one = Key("one", "k,g g", "a", "", "main")
    assert clashes([one, Key("two", "k", "b", "", "table")]) == ["k is both one and two"]
    assert clashes([one, Key("two", "g", "b", "", "table")]) == ["g is both one and two"]
    assert clashes([one, Key("two", "k", "b", "", "table", shadows=("one",))]) == []
    assert clashes([Key("one", "k", "a", "", "log"), Key("two", "k", "b", "", "table")]) == []
    assert (
        clash_notice(["k is both one and two", "x"]) == "keys: k is both one and two, and 1 more; change one in [keys]"
    )


def test_a_users_keys_go_over_the_preset_and_a_wrong_id_or_key_is_one_line() -> None:
    found = keymap_for("vim", {"table.sort": "o,ctrl+t", "theme": "", "help": "?"})
    assert found.by_id["table.sort"].keys == "o,ctrl+t"
    assert found.by_id["screen.leases"].keys == "g 3"
    assert found.by_id["theme"] not in found.of("main")
    assert found.changed()["table.sort"] == "o,ctrl+t"
    assert "help" not in found.changed()
    assert keymap_for("default", {"header": "r"}).clashes() == ["r is both header and refresh"]
    with pytest.raises(ConfigError, match=r"keys.table.srt: no key has this id; did you mean table.sort\?"):
        keymap_for("default", {"table.srt": "o"})
    with pytest.raises(ConfigError, match=r"keys.theme: 'ctrl\+' is no key"):
        keymap_for("default", {"theme": "ctrl+"})


def test_keys_read_as_people_write_them() -> None:
    for written, name in {
        "/": "slash",
        "g g": "g g",
        "pgup, [": "pageup,left_square_bracket",
        "ctrl+x": "ctrl+x",
    }.items():
        assert parse(written) == name
    assert [shown(one) for one in ("slash", "g g", "escape", "ctrl+d", "minus", "plus")] == [
        "/", "g g", "esc", "ctrl+d", "-", "+",
    ]  # fmt: skip


# ---- keys that wait for more -----------------------------------------------------------------------------


def typed(*keys: str, preset: PresetName = "default", apart_s: float = 0.1) -> list[Typed | Held]:
    keymap, pending, here = keymap_for(preset, {}), Pending(), ("main", "table")
    live, counted = keymap.live(here), keymap.counted(here)
    return [pending.feed(key, live, number * apart_s, counted) for number, key in enumerate(keys)]


def test_keys_in_a_row_are_one_and_a_row_that_leads_nowhere_gives_its_last_key_back() -> None:
    assert typed("g", "g") == [Held(), Typed("g g", is_row=True)]
    assert typed("g", "j") == [Held(), Typed("j")]
    assert typed("g", "g", apart_s=PENDING_S + 1) == [Held(), Held()]
    assert typed("g", "escape", "g") == [Held(), Held(), Held()]


def test_a_number_goes_to_the_next_key_and_screens_stay_on_their_digits() -> None:
    assert typed("3") == [Typed("3")]
    assert typed("3", "j") == [Typed("3"), Typed("j")]
    assert typed("1", "0", "j") == [Typed("1"), Held(undo_screens=True), Typed("j", 10)]
    assert typed("9", "5", "G")[-1] == Typed("G", 95)
    assert typed("1", "0", apart_s=NEXT_DIGIT_S + 0.1)[-1] == Typed("0")
    assert typed("5", "3")[-1] == Typed("3")
    assert typed("9", "5", "g", "g")[-1] == Typed("g g", 95, is_row=True)


def test_any_number_of_two_digits_or_more_is_a_count_once_a_key_follows_that_takes_one() -> None:
    as_count = Typed("j", 25, undo_screens=True)
    assert typed("2", "5", "j") == [Typed("2"), Typed("5"), as_count]
    assert typed("1", "2", "3", "j")[-1] == Typed("j", 123, undo_screens=True)
    assert typed("2", "5", "g", "g")[-2:] == [Held(undo_screens=True), Typed("g g", 25, is_row=True)]
    assert typed("0", "5", "j")[-1] == Typed("j", 5, undo_screens=True)
    assert typed("0", "0", "j")[-1] == Typed("j")
    assert typed("2", "5", "s")[-1] == Typed("s"), "two screens, and a key that takes no number"
    assert typed("2", "5", "escape")[-1] == Typed("escape")
    for number in range(10, 100):
        last = typed(*str(number), "j")[-1]
        assert isinstance(last, Typed)
        assert (last.key, last.count) == ("j", number)


def test_screens_that_are_changed_slowly_are_no_number() -> None:
    slow = SCREEN_DIGIT_S + 0.1
    assert typed("2", "5", "j", apart_s=NEXT_DIGIT_S + 0.1) == [Typed("2"), Typed("5"), Typed("j")]
    keymap, pending = keymap_for("default", {}), Pending()
    live, counted = keymap.live(("main", "table")), keymap.counted(("main", "table"))
    steps = [pending.feed(key, live, at, counted) for key, at in (("2", 0.0), ("5", 0.1), ("j", 0.1 + slow))]
    assert steps[-1] == Typed("j"), "after a look at the screen, j is for that screen"


def test_in_the_vim_preset_every_number_is_a_count_and_screens_are_rows_of_keys() -> None:
    assert typed("2", "5", "j", preset="vim")[-1] == Typed("j", 25)
    assert typed("g", "3", preset="vim")[-1] == Typed("g 3", is_row=True)
    assert typed("0", preset="vim") == [Typed("0")]
    assert typed(*"99999999", "j", preset="vim")[-1] == Typed("j", 99_999)


# ---- commands ------------------------------------------------------------------------------------------------


def test_a_word_stands_for_its_command_an_alias_or_the_only_one_that_begins_so() -> None:
    """T45: never one of several."""
    names = [command.name for command in COMMANDS]
    aliases = [alias for command in COMMANDS for alias in command.aliases]
    assert len({*names, *aliases}) == len(names) + len(aliases)
    for word, name in {"job": "job", "quit": "q", "cur": "curves", "context": "ctx"}.items():
        found, _ = find_command(word)
        assert found is not None
        assert found.name == name
    found, among = find_command("j")
    assert found is None
    assert {"job", "jobs"} <= {command.name for command in among}


def test_tab_completes_names_and_arguments_as_far_as_they_are_certain() -> None:
    themes = {"theme": ["hypha-dark", "hypha-light", "nord"], "file": ["jobs/", "job.toml"]}

    def offer(kind: str, begun: str) -> list[str]:
        return themes.get(kind, [])

    assert complete("cur", offer).line == "curves "
    assert complete("jo", offer).line == "job"
    assert set(complete("jo", offer).choices) >= {"job", "jobs"}
    assert complete("theme hy", offer).line == "theme hypha-"
    assert complete("theme light", offer).line == "theme hypha-light"
    assert complete("theme zzz", offer).line == "theme zzz"
    assert complete("nonsense", offer).choices == ()
    assert complete("submit job", offer).line == "submit job"


def test_the_footer_and_the_help_show_the_keys_in_force() -> None:
    keymap = keymap_for("plain", {})
    assert keymap.footer("main")[0].text == "f1"
    assert Keymap().footer("main")[0].text == "?"
    assert all(re.fullmatch(r"[\x20-\x7e]+", name) for key in Keymap().keys for name in key.names)


def test_keys_that_change_the_cluster_are_dim_where_nothing_may_be_changed() -> None:
    """T26."""
    shown_keys = Keymap().footer("main", "table", "jobs")
    tones = dict(bars.keys(shown_keys, 200, readonly=True))
    assert tones["x"] == "dim"
    assert tones["a"] == "dim"
    assert tones["s"] == "key"
    assert dict(bars.keys(shown_keys, 200, readonly=False))["x"] == "key"
