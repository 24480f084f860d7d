"""Options with which the tests run each environment family, and random messages to play them."""

import json
import random
from typing import Any

# Long episodes for families that start or end one slowly, so that ten thousand turns need only a few.
FAMILIES: dict[str, dict[str, Any]] = {
    "alfworld": {"max_turns": 400},
    "frozenlake": {},
    "minihack": {"variant": "keyroom"},
    "sokoban": {},
    "swebench": {"max_turns": 400},
    "vaults": {},
    "webshop": {},
}

_COMMANDS = ("ls -a", "git log --oneline", "cat README.md", "echo hello > new.txt", "grep -rn def . | sort | head")
_WORDS = ("red", "cotton", "lamp", "for", "women", "large", "zzz")


def valid_message(rng: random.Random, admissible: list[str], tools: list[dict[str, Any]]) -> str:
    """Return a message with a random action that is valid."""
    if tools:
        call = {"name": "bash", "arguments": {"command": rng.choice(_COMMANDS)}}
        return f"<think>Hm.</think><tool_call>{json.dumps(call)}</tool_call>"
    action = rng.choice(admissible)
    if action.startswith("search["):
        action = f"search[{' '.join(rng.choices(_WORDS, k=3))}]"
    return f"<think>Hm.</think><action>{action}</action>"


def random_message(rng: random.Random, admissible: list[str], tools: list[dict[str, Any]]) -> str:
    """Return a message that a model could write, valid more often than not."""
    if rng.random() < 0.1:
        return rng.choice(["", "<action>", "I do not know.", "<action>dance</action>"])
    return valid_message(rng, admissible, tools)


def hostile_message(rng: random.Random, admissible: list[str]) -> str:
    """Return a message that tries to break a parser, a shell, a template or a log."""
    kind = rng.randrange(14)
    action = rng.choice(admissible) if admissible else "x"
    if kind == 0:
        return "".join(chr(rng.choice([rng.randrange(32), rng.randrange(0x10FFFF), 0xDC80, 0])) for _ in range(20))
    if kind == 1:
        return rng.choice(["<action>", "</action>", "<think>", "</think>", "<tool_call>"]) * rng.randrange(200)
    if kind == 2:
        return f"<action>{action}" * rng.randrange(1, 50)
    if kind == 3:
        arguments = {rng.choice(["command", "path", "query", "x"]): rng.choice([None, 1, [], {}, "\x00", "-" * 99])}
        call = {"name": rng.choice(["bash", "submit ", "str_replace_editor", "", "__init__"]), "arguments": arguments}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    if kind == 4:
        return f"<tool_call>{'[' * rng.randrange(5000)}</tool_call>"
    return rng.choice(
        [
            "",
            " ",
            "\x1b[2J\x07\r\n",
            "$(kill -9 1); `reboot` && rm -rf / | : > /dev/null",
            "'; DROP TABLE products; --",
            "{{7*7}} ${jndi:ldap://x} %s%n%x {0.__class__}",
            '{"action": "' + action + '"}',
            f"<action>{action}\x00</action>",
            f"<action>{action.upper()}{' ' * rng.randrange(100)}</action>",
            f"<action>{action}\u202e\ufeff</action>",
            "<action>search[" + "\\[(.*)*" * rng.randrange(100) + "]</action>",
            "<action>click[" + "9" * rng.randrange(400) + "]</action>",
            "<action>go to " + "drawer " * rng.randrange(100) + "</action>",
            "\udcff\ud800 \U0001f480" * rng.randrange(50),
        ]
    )
