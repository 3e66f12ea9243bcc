"""Where peers can be reached."""

from __future__ import annotations

from node.addresses import Address
from node.network.addressbook import MAX_ADDRESSES, WRONG_FOR_S, AddressBook

HERE, THERE = ("10.0.0.1", 4001), ("10.0.0.2", 4001)


def test_addresses_that_cannot_be_read_or_pin_somebody_else_are_left_out() -> None:
    book = AddressBook()
    book.set("a", ["/ip4/10.0.0.1/tcp/4001", "nonsense", f"/ip4/10.0.0.2/tcp/1/p2p/12D3KooW{'a' * 44}"])
    assert book.of("a") == [Address("10.0.0.1", 4001)]


def test_the_place_that_worked_last_is_tried_first() -> None:
    book = AddressBook()
    book.worked("a", THERE)
    assert book.order("a", [HERE, THERE], 0.0) == [THERE, HERE]


def test_a_place_where_somebody_else_answered_is_left_out_for_a_while() -> None:
    book = AddressBook()
    book.worked("a", HERE)
    book.is_someone_else("a", HERE, 0.0)
    assert book.order("a", [HERE, THERE], 1.0) == [THERE]
    assert book.order("a", [HERE, THERE], WRONG_FOR_S) == [HERE, THERE]


def test_the_address_a_peer_was_dialled_at_stays_whatever_its_record_says() -> None:
    book = AddressBook()
    book.dialled("a", Address("gw.example.org", 443))
    book.set("a", ["/ip4/10.0.0.1/tcp/4001"])
    book.drop("a")
    assert book.of("a") == [Address("gw.example.org", 443)]


def test_a_record_cannot_bring_any_number_of_addresses() -> None:
    book = AddressBook()
    book.set("a", [f"/ip4/10.0.0.1/tcp/{port}" for port in range(1, 1000)])
    assert len(book.of("a")) == MAX_ADDRESSES
