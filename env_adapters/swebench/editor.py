"""The tool ``str_replace_editor``, with which SWE-bench agents view and edit files.

Owns its commands. Files are read and written by programs inside the sandbox, so paths and links are never resolved on
the host.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from env_adapters.swebench.observation import plain
from env_adapters.swebench.sandbox import Output, Sandbox

_SHOWN_AROUND = 4  # lines before and after a change
_KIND = """[ -d {path} ] && echo directory && exit
[ -f {path} ] && echo file && exit
[ -e {path} ] && echo other"""
_LIST = "cd {path} && find . -mindepth 1 -maxdepth 2 -not -path '*/.*' | LC_ALL=C sort | cut -c 3-"
_PROBLEMS = {
    "": "does not exist",
    "directory": "is a directory",
    "file": "cannot be read, or is too long",
    "other": "is not a file",
}


@dataclass(frozen=True, slots=True)
class Edit:
    """Result of an editor command.

    Attributes:
        text: The answer to the model.
        effective: Whether the command succeeded.
    """

    text: str
    effective: bool = True


def run_editor(sandbox: Sandbox, arguments: dict[str, Any]) -> Edit:
    """Run an editor command whose arguments are valid.

    Raises:
        SandboxLost: If the sandbox does not answer.
    """
    path = arguments["path"]
    if not path.startswith("/"):
        return Edit(f"The path {path!r} is not absolute; it must begin with /.", False)
    if arguments["command"] == "create":
        return _create(sandbox, path, arguments["file_text"])
    data = sandbox.read(path)
    if data is None:
        return _look(sandbox, path, list_directory=arguments["command"] == "view")
    return _EDITS[arguments["command"]](sandbox, path, data.decode("utf-8", errors="surrogateescape"), arguments)


def _create(sandbox: Sandbox, path: str, text: str) -> Edit:
    if _kind(sandbox, path):
        return Edit(f"{path} exists already; change it with str_replace or insert.", False)
    output = sandbox.write(path, _encode(text))
    return Edit(f"Created {path}.") if output.ok else _not_written(path, output)


def _look(sandbox: Sandbox, path: str, *, list_directory: bool) -> Edit:
    """Answer for a path that could not be read as a file: list the directory, or say what is wrong."""
    kind = _kind(sandbox, path)
    if kind == "directory" and list_directory:
        names = plain(sandbox.exec(_LIST.format(path=shlex.quote(path))).data)
        return Edit(f"Files and directories in {path}, without hidden ones:\n{names}".rstrip())
    return Edit(f"{path} {_PROBLEMS.get(kind, _PROBLEMS['file'])}.", False)


def _kind(sandbox: Sandbox, path: str) -> str:
    return plain(sandbox.exec(_KIND.format(path=shlex.quote(path))).data).strip()


def _view(_: Sandbox, path: str, text: str, arguments: dict[str, Any]) -> Edit:
    count = len(_lines(text))
    first, last = arguments.get("view_range") or (1, -1)
    last = count if last == -1 else min(last, count)
    if count == 0:
        return Edit(f"{path} is empty.")
    if not 1 <= first <= last:
        return Edit(f"view_range must be [first, last] within the lines 1 to {count} of {path}.", False)
    return Edit(f"{path}, lines {first} to {last} of {count}:\n{_numbered(text, first, last)}")


def _str_replace(sandbox: Sandbox, path: str, text: str, arguments: dict[str, Any]) -> Edit:
    old, new = arguments["old_str"], arguments.get("new_str", "")
    if not old:
        return Edit("old_str is empty; to add lines use insert.", False)
    count = text.count(old)
    if count != 1:
        where = [str(1 + text.count("\n", 0, at)) for at in _find(text, old, 10)]
        found = f"occurs {count} times in {path}, in lines {', '.join(where)}" if count else f"does not occur in {path}"
        return Edit(f"Nothing was replaced: old_str {found}. It must occur exactly once.", False)
    if old == new:
        return Edit("Nothing was replaced: old_str and new_str are the same.", False)
    at = text.index(old)
    line = 1 + text.count("\n", 0, at)
    return _write(sandbox, path, text[:at] + new + text[at + len(old) :], line, line + new.count("\n"))


def _insert(sandbox: Sandbox, path: str, text: str, arguments: dict[str, Any]) -> Edit:
    lines, number = _lines(text), arguments["insert_line"]
    if not 0 <= number <= len(lines):
        return Edit(f"insert_line must be in 0 to {len(lines)}, the number of lines of {path}.", False)
    new = _lines(arguments["new_str"]) or [""]
    end = "\n" if text.endswith("\n") or number < len(lines) or not lines else ""
    changed = "\n".join([*lines[:number], *new, *lines[number:]]) + end
    return _write(sandbox, path, changed, number + 1, number + len(new))


_EDITS: dict[str, Callable[[Sandbox, str, str, dict[str, Any]], Edit]] = {
    "view": _view,
    "str_replace": _str_replace,
    "insert": _insert,
}


def _write(sandbox: Sandbox, path: str, text: str, first: int, last: int) -> Edit:
    output = sandbox.write(path, _encode(text))
    if not output.ok:
        return _not_written(path, output)
    count = len(_lines(text))
    first, last = max(1, first - _SHOWN_AROUND), min(count, last + _SHOWN_AROUND)
    return Edit(f"Changed {path}, lines {first} to {last} of {count} are now:\n{_numbered(text, first, last)}")


def _not_written(path: str, output: Output) -> Edit:
    reason = plain(output.data[-500:]).strip().rpartition(": ")[2]
    return Edit(f"{path} cannot be written{f' ({reason})' if reason else ''}.", False)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _numbered(text: str, first: int, last: int) -> str:
    shown = _lines(text)[first - 1 : last]
    return "\n".join(f"{number:6}\t{plain(_encode(line))}" for number, line in enumerate(shown, first))


def _find(text: str, part: str, most: int) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0 and len(found) < most:
        found.append(at)
        at = text.find(part, at + len(part))
    return found


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates written by the model, not those that stand for bytes of a file
        return text.encode("utf-8", errors="replace")
