"""A file that grows, read from where the last look ended."""

from __future__ import annotations

import pytest

from otel_grpo.ranks import tail
from otel_grpo.ranks.tail import Tail


@pytest.mark.parametrize("block", [3, 7, 1 << 20])
def test_each_line_once_whatever_the_blocks(tmp_path, monkeypatch, block):
    """Looked at after every byte, and once at the end: the same lines."""
    monkeypatch.setattr(tail, "_BLOCK", block)
    path = tmp_path / "file"
    path.write_bytes(b"")
    text = b"one\ntwo two\n\nfour\n"
    growing, found = Tail(path), []
    for n in range(len(text)):
        with path.open("ab") as file:
            file.write(text[n : n + 1])
        found += growing.lines()
    assert found == text.split(b"\n")[:-1]
    assert list(Tail(path).lines()) == found
    assert list(growing.lines()) == []


def test_another_file_of_the_name_is_not_read_again(tmp_path):
    """A file that became shorter has nothing new; what comes after the old end is read on."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    growing = Tail(path)
    assert list(growing.lines()) == [b"one", b"two"]
    path.write_bytes(b"x\n")
    assert list(growing.lines()) == []


def test_an_endless_line_is_given_up(tmp_path, monkeypatch):
    """It is no line of ours, and is not kept in memory."""
    monkeypatch.setattr(tail, "LONGEST_LINE", 10)
    path = tmp_path / "file"
    path.write_bytes(b"x" * 11)
    growing = Tail(path)
    assert list(growing.lines()) == [b"x" * 11]
    with path.open("ab") as file:
        file.write(b"y\nz\n")
    assert list(growing.lines()) == [b"y", b"z"]
