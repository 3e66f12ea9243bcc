"""Who may use the terminal in a browser: links work once, and only pages of our own on this machine come in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("textual_serve")

from hypha_tui.client.api import ApiClient
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.serve.child import ServedApp
from hypha_tui.serve.gate import MOST_COOKIES, Gate, is_our_host, is_our_origin
from hypha_tui.serve.orders import decode, orders_for
from hypha_tui.serve.session import HEIGHTS, WIDTHS, clamped, environment_for
from node.errors import Refused


def test_a_link_works_once_and_the_next_one_is_another() -> None:
    gate = Gate()
    token = gate.token
    cookie = gate.redeem(token)
    assert cookie is not None and gate.knows(cookie)
    assert gate.redeem(token) is None
    assert gate.token not in (token, cookie)
    assert len(token) >= 32


@pytest.mark.parametrize("wrong", ["", "x", "ä" * 40])
def test_a_wrong_token_or_cookie_is_nothing(wrong: str) -> None:
    gate = Gate()
    assert gate.redeem(wrong) is None
    assert not gate.knows(wrong)


def test_the_browser_that_came_first_is_forgotten_when_there_are_too_many() -> None:
    gate = Gate()
    first = gate.redeem(gate.token) or ""
    for _ in range(MOST_COOKIES):
        gate.redeem(gate.token)
    assert not gate.knows(first)


def test_only_names_of_this_machine_are_answered() -> None:
    """A page whose own name resolves to 127.0.0.1 is turned away; a tunnel to another port is not."""
    assert all(map(is_our_host, ["127.0.0.1:8421", "localhost:9000", "[::1]:8421", "LOCALHOST"]))
    wrong = ["evil.example", "evil.example:8421", "127.0.0.1.evil.example", "", "x@localhost", "localhost/..", "::1:x"]
    assert not any(map(is_our_host, wrong))


def test_a_websocket_needs_our_origin_and_another_ports_page_is_another() -> None:
    assert is_our_origin("http://localhost:8421", "localhost:8421", needed=True)
    assert is_our_origin(None, "localhost:8421", needed=False)
    for origin in (None, "http://localhost:3000", "https://localhost:8421", "null", "http://evil.example"):
        assert not is_our_origin(origin, "localhost:8421", needed=True)


def test_a_session_is_told_nothing_of_our_environment_that_may_be_secret() -> None:
    given = {"PATH": "/bin", "HOME": "/home/a", "AWS_SECRET_ACCESS_KEY": "s", "HYPHA_TUI_KEY": "k", "LC_ALL": "C"}
    found = environment_for(given, 80, 24)
    assert found["PATH"] == "/bin"
    assert not {"AWS_SECRET_ACCESS_KEY", "HYPHA_TUI_KEY"} & set(found)
    assert (found["TEXTUAL_FPS"], found["COLUMNS"], found["ROWS"]) == ("20", "80", "24")


def test_orders_come_out_as_they_went_in() -> None:
    orders = orders_for(Endpoint(socket=Path("/run/node.sock")), readonly=True, theme="hypha-light")
    assert decode(orders.encoded()) == orders
    assert orders.endpoint() == Endpoint(socket=Path("/run/node.sock"))


def test_a_session_that_only_looks_has_a_client_that_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    app = ServedApp(orders_for(Endpoint(socket=Path("/run/node.sock")), readonly=True), 0)
    client = app.client
    assert isinstance(client, ApiClient) and app.context.readonly

    async def try_to_cancel() -> None:
        try:
            await client.cancel("diloco-7")
        finally:
            await client.close()

    with pytest.raises(Refused):
        asyncio.run(try_to_cancel())


@pytest.mark.parametrize(("told", "kept"), [(120, 120), (10**9, WIDTHS[1]), (-1, WIDTHS[0]), ("x", WIDTHS[0])])
def test_a_browser_cannot_ask_for_a_window_of_any_size(told: object, kept: int) -> None:
    assert clamped(told, WIDTHS) == kept
    assert HEIGHTS[0] <= clamped(told, HEIGHTS) <= HEIGHTS[1]
