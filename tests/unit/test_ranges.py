"""Ranges and entity tags of bulk transfers."""

from __future__ import annotations

import pytest

from node.network.ranges import Span, etag_of, is_match, parse_content_range, sha256_of_etag, span_of

SHA = "ab" * 32
TAG = etag_of(SHA)


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-", 10, 100),
        ("bytes=10-19", 10, 20),
        ("bytes=-5", 95, 100),
        ("bytes=90-1000", 90, 100),
        ("bytes=-1000", 0, 100),
        ("BYTES = 1 - 2", 1, 3),
    ],
)
def test_one_range_selects_these_bytes(header: str, start: int, end: int) -> None:
    assert span_of(header, None, TAG, 100) == Span(start, end, is_part=True)


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=0-1,3-4", "bytes=,"])
def test_ranges_outside_the_file_and_several_ranges_cannot_be_satisfied(header: str) -> None:
    assert span_of(header, None, TAG, 100) is None


@pytest.mark.parametrize("header", [None, "lines=1-2", "bytes=x-y", "bytes=5-2", "bytes=-", "bytes", "bytes=1-2-3"])
def test_what_is_not_a_byte_range_is_ignored(header: str | None) -> None:
    assert span_of(header, None, TAG, 100) == Span(0, 100, is_part=False)


def test_of_an_empty_file_any_range_is_the_whole() -> None:
    assert span_of("bytes=0-0", None, TAG, 0) == Span(0, 0, is_part=False)


def test_a_range_for_another_content_is_ignored_with_if_range() -> None:
    assert span_of("bytes=5-", etag_of("cd" * 32), TAG, 100) == Span(0, 100, is_part=False)
    assert span_of("bytes=5-", TAG, TAG, 100) == Span(5, 100, is_part=True)


def test_if_match_lets_only_the_same_content_through() -> None:
    assert is_match(None, TAG)
    assert is_match("*", TAG)
    assert is_match(f'"other", {TAG}', TAG)
    assert not is_match('"other"', TAG)
    assert not is_match(f"W/{TAG}", TAG)


def test_the_tag_carries_the_digest() -> None:
    assert sha256_of_etag(TAG) == SHA
    assert sha256_of_etag('"abc"') is None
    assert sha256_of_etag(f'"sha256:{"g" * 64}"') is None


def test_content_range_is_read_strictly() -> None:
    assert parse_content_range("bytes 5-9/100") == (5, 10, 100)
    for wrong in (None, "", "bytes */100", "bytes 9-5/100", "bytes 0-100/100", "bytes 1-2/*"):
        assert parse_content_range(wrong) is None
