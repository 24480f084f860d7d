"""Tool schemas, system prompt and validation of tool calls for SWE-bench.

``environment`` and ``editor`` carry out the calls.
"""

import json
from typing import Any

from env_adapters.swebench.sandbox import WORK_TREE

MAX_LENGTH = 2**18
"""Maximum total number of characters in the texts of one call."""

_COMMANDS: dict[str, dict[str, type]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": {"path": str, "old_str": str},
    "insert": {"path": str, "insert_line": int, "new_str": str},
}
_OPTIONAL: dict[str, dict[str, type]] = {"view": {"view_range": list}, "str_replace": {"new_str": str}}


def _function(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: tuple[dict[str, Any], ...] = (
    _function(
        "bash",
        "Run a command in bash. The shell stays: directory, variables and functions are kept from call to call. "
        "There is no network and no terminal; commands read nothing from standard input.",
        ["command"],
        command={"type": "string", "description": "The command, perhaps of several lines."},
    ),
    _function(
        "str_replace_editor",
        "View, create and edit text files. `view` shows a file with line numbers, or what is in a directory up to two "
        "levels deep. `create` writes a new file. `str_replace` replaces the text `old_str`, which must occur exactly "
        "once in the file. `insert` puts `new_str` below line `insert_line`.",
        ["command", "path"],
        command={"type": "string", "enum": list(_COMMANDS), "description": "What to do."},
        path={"type": "string", "description": f"Absolute path, such as {WORK_TREE}/README.md."},
        file_text={"type": "string", "description": "For create: content of the new file."},
        old_str={"type": "string", "description": "For str_replace: the text to replace, with its white space."},
        new_str={"type": "string", "description": "For str_replace and insert: the new text. Default: none."},
        insert_line={"type": "integer", "description": "For insert: number of the line; 0 is before the first."},
        view_range={
            "type": "array",
            "items": {"type": "integer"},
            "description": "For view: first and last line, such as [11, 20]; -1 as the last is the end of the file.",
        },
    ),
    _function("submit", "End the episode: the changes in the repository are graded as they are.", []),
)
"""Function schemas in OpenAI's format."""

_EXAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash", {"command": "..."}),
    ("str_replace_editor", {"command": "view", "path": "/...", "view_range": [1, 50]}),
    ("str_replace_editor", {"command": "create", "path": "/...", "file_text": "..."}),
    ("str_replace_editor", {"command": "str_replace", "path": "/...", "old_str": "...", "new_str": "..."}),
    ("str_replace_editor", {"command": "insert", "path": "/...", "insert_line": 0, "new_str": "..."}),
    ("submit", {}),
)
FORMS = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in _EXAMPLES]
"""Examples of valid calls."""

REFUSAL = "\n".join(
    [
        "Invalid tool call, nothing happened. Answer with exactly one call as JSON inside <tool_call> </tool_call>, of "
        "one of these forms:",
        *FORMS,
    ]
)


def build_instructions(max_turns: int, timeout: float) -> str:
    """Return the system prompt."""
    return f"""You are a software engineer. An issue of a repository is described to you; change the repository so \
that the issue is solved.

The repository is in {WORK_TREE}, in a sandbox without network. You work on it with three tools:
- bash: runs a command in a shell that stays open; a command may take {timeout:g} seconds.
- str_replace_editor: views, creates and edits files.
- submit: ends the episode.

Rules:
- You are graded by hidden tests: those for the issue must pass, and those that pass now must still pass. They run \
on a fresh copy of the repository with your changes; changes to existing tests do not count.
- Look at the code and reproduce the issue before you change anything, and test your changes. Repair the cause, with \
small changes.
- You have {max_turns} turns, one tool call each; an invalid call is a lost turn. Call submit when you are done. When \
the turns are used up, the repository is graded as it is.

First think, inside <think> </think>, then make exactly one tool call, for example:
<think>I look at what is there.</think>
<tool_call>
{{"name": "bash", "arguments": {{"command": "git status && ls"}}}}
</tool_call>"""


def check_call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the required and optional arguments of a call without any others, or None if the call is invalid."""
    required: dict[str, type]
    optional: dict[str, type] = {}
    if name == "submit":
        required = {}
    elif name == "bash":
        required = {"command": str}
    elif name == "str_replace_editor" and isinstance(command := arguments.get("command"), str) and command in _COMMANDS:
        required = {"command": str, **_COMMANDS[command]}
        optional = _OPTIONAL.get(command, {})
    else:
        return None
    given = {key: arguments[key] for key in optional if arguments.get(key) is not None}
    if not required.keys() <= arguments.keys():
        return None
    given |= {key: arguments[key] for key in required}
    expected = required | optional
    return given if all(_is(value, expected[key]) for key, value in given.items()) and _fits(given) else None


def _is(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and len(value) == 2 and all(_is(item, int) for item in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9
    return isinstance(value, kind)


def _fits(arguments: dict[str, Any]) -> bool:
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return sum(map(len, texts)) <= MAX_LENGTH and not any("\0" in text for text in texts)
