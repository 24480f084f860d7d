"""The tool str_replace_editor, in a real sandbox."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from env_adapters.swebench.editor import Edit, run_editor
from env_adapters.swebench.sandbox import Sandbox
from env_adapters.swebench.tools import check_call

PATH = "/testbed/file.txt"


@pytest.fixture
def edit(start: Callable[..., Sandbox]) -> Callable[..., Edit]:
    sandbox = start()

    def run(command: str, path: str = PATH, content: bytes | None = None, **arguments: Any) -> Edit:
        if content is not None:
            sandbox.write(path, content)
        valid = check_call("str_replace_editor", {"command": command, "path": path, **arguments})
        assert valid is not None
        edit = run_editor(sandbox, valid)
        run.content = sandbox.read(path)  # type: ignore[attr-defined]
        return edit

    return run


def test_view_numbers_lines(edit: Any) -> None:
    shown = edit("view", content=b"one\n\n\tthree\n")
    assert shown == Edit(f"{PATH}, lines 1 to 3 of 3:\n     1\tone\n     2\t\n     3\t\tthree")
    assert edit("view", view_range=[2, 3]).text.endswith("lines 2 to 3 of 3:\n     2\t\n     3\t\tthree")
    assert edit("view", view_range=[3, -1]).text == edit("view", view_range=[3, 99]).text
    assert edit("view", content=b"").text == f"{PATH} is empty."
    assert edit("view", content=b"no end").text.endswith("1\tno end")
    for outside in ([0, 1], [4, 5], [3, 2], [-1, -1]):
        assert edit("view", content=b"1\n2\n3\n", view_range=outside).effective is False


def test_view_lists_a_directory_two_levels_deep(edit: Any) -> None:
    for path in ("a/b/c", "a/d e", ".hidden/x", "a/.git/x", "z"):
        edit("create", f"/testbed/folder/{path}", file_text="")
    listing = edit("view", "/testbed/folder").text
    assert listing == "Files and directories in /testbed/folder, without hidden ones:\na\na/b\na/d e\nz"


def test_create_writes_a_new_file_with_its_folders(edit: Any) -> None:
    assert edit("create", "/testbed/new/x.py", file_text="a\n\udc80é") == Edit("Created /testbed/new/x.py.")
    assert edit.content == b"a\n\x80\xc3\xa9"
    again = edit("create", "/testbed/new/x.py", file_text="b")
    assert not again.effective and "exists already" in again.text and edit.content.startswith(b"a")
    refused = edit("create", "/usr/x", file_text="b")
    assert refused == Edit("/usr/x cannot be written (Read-only file system).", False)
    assert not edit("create", "relative", file_text="b").effective


def test_str_replace_needs_exactly_one_occurrence(edit: Any) -> None:
    text = b"".join(b"line %d\n" % number for number in range(1, 21))
    changed = edit("str_replace", content=text, old_str="line 10\nline 11\n", new_str="ten\neleven\nmore\n")
    assert edit.content == text.replace(b"line 10\nline 11\n", b"ten\neleven\nmore\n")
    assert changed.text.startswith(f"Changed {PATH}, lines 6 to 17 of 21 are now:\n     6\tline 6\n")
    assert "    12\tmore\n" in changed.text and changed.text.endswith("    17\tline 16")
    several = edit("str_replace", content=b"a b\nb\n", old_str="b", new_str="c")
    assert several == Edit(
        f"Nothing was replaced: old_str occurs 2 times in {PATH}, in lines 1, 2. It must occur exactly once.", False
    )
    assert "does not occur" in edit("str_replace", old_str="x", new_str="c").text and edit.content == b"a b\nb\n"
    assert edit("str_replace", old_str=" b").effective and edit.content == b"a\nb\n"
    assert not edit("str_replace", old_str="", new_str="c").effective
    assert not edit("str_replace", old_str="a", new_str="a").effective


def test_insert_puts_lines_below_a_line(edit: Any) -> None:
    for line, expected in ((0, b"x\ny\n1\n2\n"), (1, b"1\nx\ny\n2\n"), (2, b"1\n2\nx\ny\n")):
        assert edit("insert", content=b"1\n2\n", insert_line=line, new_str="x\ny").effective
        assert edit.content == expected
    assert edit("insert", content=b"1\n2", insert_line=2, new_str="x").effective and edit.content == b"1\n2\nx"
    assert edit("insert", content=b"", insert_line=0, new_str="x\n").effective and edit.content == b"x\n"
    assert edit("insert", content=b"1\n", insert_line=1, new_str="").effective and edit.content == b"1\n\n"
    outside = edit("insert", content=b"1\n", insert_line=2, new_str="x")
    assert not outside.effective and "must be in 0 to 1" in outside.text
    assert not edit("insert", insert_line=-1, new_str="x").effective and edit.content == b"1\n"


def test_bytes_that_are_not_text_are_preserved(edit: Any) -> None:
    assert edit("str_replace", content=b"\xff\xfe a\r\n\0b\n", old_str="a", new_str="c").effective
    assert edit.content == b"\xff\xfe c\r\n\0b\n"
    shown = edit("view").text
    assert "\x00" not in shown and "\r" not in shown and "\ufffd" in shown


def test_paths_that_are_not_files_are_reported(edit: Any) -> None:
    for command, more in (
        ("view", {}),
        ("str_replace", {"old_str": "a"}),
        ("insert", {"insert_line": 0, "new_str": ""}),
    ):
        assert edit(command, "/testbed/none", **more).text == "/testbed/none does not exist."
        assert edit(command, "/dev/zero", **more).text == "/dev/zero is not a file."
    assert edit("str_replace", "/testbed", old_str="a").text == "/testbed is a directory."
    long = edit("view", content=b"x" * 200_000)
    assert long == Edit(f"{PATH} cannot be read, or is too long.", False)


def test_random_edits_agree_with_a_list_of_lines(edit: Any) -> None:
    chosen = random.Random(3)
    lines = [f"line {number}" for number in range(10)]
    edit("create", file_text="\n".join(lines) + "\n")
    for number in range(25):
        at = chosen.randrange(len(lines) + 1)
        if chosen.random() < 0.5 or at == len(lines):
            lines[at:at] = [f"new {number}"]
            edit("insert", insert_line=at, new_str=f"new {number}")
        else:
            old, lines[at] = lines[at], f"changed {number}"
            edit("str_replace", old_str=f"{old}\n", new_str=f"changed {number}\n")
        assert edit.content.decode() == "\n".join(lines) + "\n"
