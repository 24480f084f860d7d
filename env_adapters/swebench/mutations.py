"""Changes assertions so that they fail where they pass, and look like assertions that somebody wrote.

Owns the changes of single assertions. All that is put in comes from the test file itself or resembles what was there,
and nothing around it is formatted anew, so that the text alone does not show which assertions are changed.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

_OPPOSITES = {"True": "False", "Equal": "NotEqual", "Is": "IsNot", "IsNone": "IsNotNone", "In": "NotIn"}
_OPPOSITES |= {"Greater": "LessEqual", "Less": "GreaterEqual", "IsInstance": "NotIsInstance"}
_OPPOSITES |= {right: left for left, right in _OPPOSITES.items()}
_OPERATORS = {"==": "!=", "<": ">=", ">": "<=", "is": "is not", "in": "not in"}
_OPERATORS |= {right: left for left, right in _OPERATORS.items()}
_OPERATOR = re.compile(r"\b(?:is\s+not|not\s+in|is|in)\b|[=!<>]=|[<>]")
_RAISING = {"assertRaises", "assertRaisesRegex", "assertRaisesMessage", "raises"}
# Common ones that are not bases of others.
_EXCEPTIONS = {"AttributeError", "IndexError", "KeyError", "RuntimeError", "TypeError", "ValueError"}
# Parts of a literal's text: escapes, which stay, words and numbers.
_PARTS = re.compile(r"\\.|[^\W\d_]+|\d+", re.DOTALL)
_DISPLAYS = ast.List | ast.Tuple | ast.Set | ast.Dict


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of a part of a source text, as bytes of UTF-8."""

    start: int
    end: int
    text: str


class Mutations:
    """Changes of the assertions of one test file."""

    def __init__(self, source: str) -> None:
        """Read the file.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: If it cannot be parsed.
        """
        self.tree = ast.parse(source)
        self.data = source.encode()
        self._lines = [0]
        for line in self.data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        literals = list(_constants(self.tree))
        self._counts = Counter(map(_value, literals))
        # By type; for None, which is alone of its type, those of all types.
        self._literals: dict[type, list[ast.Constant]] = {type(None): literals}
        for node in literals:
            if node.value is not None:
                self._literals.setdefault(type(node.value), []).append(node)
        self._words: dict[tuple[bool, bool], list[str]] = {}
        for part in sorted(set(_PARTS.findall(source))):
            if part[0].isalpha() and len(part) > 1:
                self._words.setdefault(_case(part), []).append(part)
        self._exceptions = set(_EXCEPTIONS)
        # By the text of a function: calls that return something, and what they are said to return.
        self._calls: dict[str, set[str]] = {}
        self._results: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            if _name(node) in _RAISING and isinstance(node, ast.Call) and node.args:
                self._exceptions |= {self.text(node.args[0])} if isinstance(node.args[0], ast.Name) else set()
            for given, wanted in _equalities(node):
                if isinstance(given, ast.Call):
                    self._results.setdefault(self.text(given.func), set()).update(self._lines_of(wanted))
                    if _is_literal(given):
                        self._calls.setdefault(self.text(given.func), set()).update(self._lines_of(given))

    def start(self, node: Any) -> int:
        """Return where a node starts."""
        return self._lines[node.lineno - 1] + node.col_offset

    def line(self, position: int) -> str:
        """Return the line of a position, without the spaces around it."""
        start = self.data.rfind(b"\n", 0, position) + 1
        end = self.data.find(b"\n", position)
        return self.data[start : end if end >= 0 else None].decode().strip()

    def text(self, node: Any) -> str:
        """Return a node's text."""
        return self.data[self.start(node) : self._end(node)].decode()

    def of(self, statement: ast.stmt, random: Random) -> list[Edit]:
        """Return changes of an assertion, each of which makes it fail; none if the statement is not an assertion."""
        if isinstance(statement, ast.Assert):
            compared = next(_equalities(statement.test), None)
            return [self._other_value(*compared, random) if compared else self._negated(statement.test, random)]
        if isinstance(statement, ast.With):
            calls = [item.context_expr for item in statement.items if _name(item.context_expr) in _RAISING]
            return self._raising(calls[0], statement.body, random) if calls else []
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not call.args or any(isinstance(arg, ast.Starred) for arg in call.args):
            return []
        name = _name(call)
        if name in _RAISING:
            return self._raising(call, [], random)
        kind, compared = name.removeprefix("assert"), next(_equalities(call), None)
        constant = compared is not None and any(_constants(compared[1]))
        if kind in _OPPOSITES and not (kind == "Equal" or (kind == "Is" and constant)):
            end = self._end(call.func)
            return [Edit(end - len(kind), end, _OPPOSITES[kind])]
        return [self._other_value(*compared, random)] if compared and not kind.startswith("Not") else []

    def _lines_of(self, *nodes: ast.expr) -> set[str]:
        """Return the texts of those of the nodes that are on one line and so may stand anywhere."""
        return {text for text in map(self.text, nodes) if "\n" not in text}

    def _end(self, node: Any) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _edit(self, node: ast.expr, text: str) -> Edit:
        return Edit(self.start(node), self._end(node), text)

    def _raising(self, call: ast.expr, body: list[ast.stmt], random: Random) -> list[Edit]:
        """Let another exception be awaited, or the same where there is none.

        The second finds out code that believes any test that awaits the exception of which the issue speaks.
        """
        assert isinstance(call, ast.Call)
        edits = []
        if call.args:
            said = self.text(call.args[0])
            others = sorted(name for name in self._exceptions if name not in said)
            edits.append(self._edit(call.args[0], random.choice(others)))
        inner = getattr(body[0], "value", None) if len(body) == 1 else None
        if isinstance(inner, ast.Call) and (returning := self._calls.get(self.text(inner.func))):
            edits.append(self._edit(inner, random.choice(sorted(returning))))
        return edits

    def _negated(self, node: ast.expr, random: Random) -> Edit:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._edit(node, self.text(node).removeprefix("not").lstrip())
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return self._negated(random.choice(node.values), random)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            start, end = self._end(node.left), self.start(node.comparators[0])
            between = self.data[start:end].decode()
            found = _OPERATOR.findall(between)
            if len(found) == 1 and "#" not in between:
                opposite = _OPERATORS[" ".join(found[0].split())]
                return Edit(start, end, between.replace(found[0], opposite))
        text = self.text(node)
        return self._edit(node, f"not ({text})" if isinstance(node, ast.BoolOp | ast.IfExp) else f"not {text}")

    def _other_value(self, given: ast.expr, wanted: ast.expr, random: Random) -> Edit:
        """Return another value to be awaited, which differs in one literal where there is one.

        Code that returns objects that equal everything is found out too, be they elements of a list.
        """
        if literals := list(_constants(wanted)):
            literal = random.choice(literals)
            return self._edit(literal, self._other_literal(literal, random))
        said = self.text(wanted)
        others = self._results.get(self.text(given.func), set()) - {said} if isinstance(given, ast.Call) else set()
        other = random.choice(sorted(others)) if others else self._another(None, random) or "1"
        if isinstance(wanted, _DISPLAYS) and other[:1] not in "[({":  # an empty list remains a list
            other = f"{said[0]}{other},{said[-1]}" if isinstance(wanted, ast.Tuple) else f"[{other}]"
        return self._edit(wanted, other)

    def _other_literal(self, node: ast.Constant, random: Random) -> str:
        """Return a literal of the same type and another value.

        One that is repeated in the file is replaced by one that is repeated, one that is unique by one that is unique.
        """
        if isinstance(node.value, bool):
            return str(not node.value)
        if node.value is not None and self._counts[_value(node)] == 1:
            return self._altered(node, random) or self._another(node.value, random) or "1"
        return self._another(node.value, random) or self._altered(node, random) or "1"

    def _another(self, value: object, random: Random) -> str:
        """Return another literal of the file, or an empty text if there is none."""
        known = self._literals.get(type(value), [])
        for _ in range(20 if known else 0):
            other = random.choice(known)
            if other.value != value and self._lines_of(other):
                return self.text(other)
        return ""

    def _altered(self, node: ast.Constant, random: Random) -> str:
        """Return a literal that is not in the file: one word or digit is another. Empty if that cannot be had."""
        text = self.text(node)
        parts = [part for part in _PARTS.finditer(text) if part[0][0] != "\\"]
        if isinstance(node.value, str | bytes):
            inner = next(index for index, character in enumerate(text) if character in "'\"")
            parts = [part for part in parts if part.start() > inner]
        for attempt in range(20 if parts else 0):
            part = random.choice(parts) if isinstance(node.value, str | bytes) else parts[0]
            other = text[: part.start()] + self._other_part(part[0], random, words=attempt < 10) + text[part.end() :]
            try:
                if (type(node.value), ast.literal_eval(f"({other})")) not in self._counts:
                    return other
            except (SyntaxError, ValueError):
                continue
        return ""

    def _other_part(self, part: str, random: Random, *, words: bool) -> str:
        """Return another word from the file, or the number with another first digit, which is far from it."""
        if part[0].isdigit():
            return random.choice("123456789") + part[1:]
        others = self._words.get(_case(part))
        if words and others and len(part) > 1:
            return random.choice(others)
        letter = random.choice("abcdefghijklmnopqrstuvwxyz")
        at = random.randrange(len(part))
        return part[:at] + (letter.upper() if part[at].isupper() else letter) + part[at + 1 :]


def _constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the literals in a node, without docstrings and the parts of formatted texts."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bytes, bool, type(None)):
        yield node
    for child in ast.iter_child_nodes(node):
        docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not docstring and type(child).__name__ not in ("JoinedStr", "TemplateStr"):
            yield from _constants(child)


def _equalities(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a comparison compares: what was computed, and what is awaited."""
    pair = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        pair = node.left, node.comparators[0]
    elif isinstance(node, ast.Call) and _name(node).startswith("assert") and len(node.args) > 1:
        pair = node.args[0], node.args[1]
    if pair and not any(isinstance(side, ast.Starred) for side in pair):
        calls = [any(isinstance(inner, ast.Call) for inner in ast.walk(side)) for side in pair]
        yield (pair[1], pair[0]) if calls == [False, True] else pair


def _name(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_literal(call: ast.Call) -> bool:
    """Return whether all arguments are literals, so that the call may stand anywhere."""
    try:
        [ast.literal_eval(argument) for argument in (*call.args, *(keyword.value for keyword in call.keywords))]
    except (TypeError, ValueError):
        return False
    return True


def _value(node: ast.Constant) -> tuple[type, object]:
    """Return a value that tells 1 from True."""
    return type(node.value), node.value


def _case(word: str) -> tuple[bool, bool]:
    return word.islower(), word.isupper()
