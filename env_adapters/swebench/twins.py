"""Turns tests into twins that code which passes the tests must fail.

Owns the spoiling of one assertion in each test. The tested code runs in the process of its tests, where it can do
anything: replace assertions, drop failures, return objects that equal everything. It cannot know which of two runs
is the real one: a test that passes together with its twin has been forged.
"""

import ast
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_OPPOSITES = {"True": "False", "Equal": "NotEqual", "Is": "IsNot", "IsNone": "IsNotNone", "In": "NotIn"}
_OPPOSITES |= {right: left for left, right in _OPPOSITES.items()}
_OTHER_EXCEPTION = 'type("Other", (Exception,), {})'
_EQUALITIES = {"assertEqual", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertMultiLineEqual"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replacement of a part of a source text, as bytes of UTF-8."""

    start: int
    end: int
    text: str


def spoil(source: str, tests: Iterable[str]) -> tuple[str, set[str]]:
    """Return a test file with one assertion spoiled in each of the tests that it holds, and the names of these tests.

    Args:
        source: Text of the test file.
        tests: Names of tests in any format that contains the words of the function's and its class's name.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source, set()
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    edits: dict[tuple[str, str], _Edit] = {}
    spoiled: set[str] = set()
    functions = list(_functions(tree))
    for test in tests:
        words = set(re.findall(r"\w+", test.partition("[")[0]))
        for owner, function in functions:
            if function.name in words and (not owner or owner in words) and not _may_fail(function):
                if (owner, function.name) not in edits:
                    edits[owner, function.name] = _spoiled(function, source.encode(), lines)
                spoiled.add(test)
    data = source.encode()
    for edit in sorted(edits.values(), key=lambda edit: edit.start, reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data.decode(), spoiled


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, _Function):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield from ((node.name, inner) for inner in node.body if isinstance(inner, _Function))


def _may_fail(function: _Function) -> bool:
    """Return whether a decorator makes a failing test a good one."""
    return any(word in ast.unparse(mark).lower() for mark in function.decorator_list for word in ("fail", "skip"))


def _spoiled(function: _Function, data: bytes, lines: list[int]) -> _Edit:
    found = [edit for statement in _certain(function.body) for edit in _edits(statement, data, lines)]
    if found:
        return secrets.choice(found)
    first = function.body[0]
    start = lines[first.lineno - 1] + first.col_offset
    before = data[lines[first.lineno - 1] : start]
    return _Edit(start, start, f"raise AssertionError{';' if before.strip() else chr(10) + before.decode()}")


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that are executed to their ends whenever the test passes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With) and not _catches(statement):
            yield from _certain(statement.body)
        # After these the test may have returned.
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            return


def _catches(statement: ast.With) -> bool:
    return any(word in ast.unparse(item).lower() for item in statement.items for word in ("raises", "suppress", "warn"))


def _edits(statement: ast.stmt, data: bytes, lines: list[int]) -> Iterator[_Edit]:
    def at(node: Any, text: str) -> _Edit:
        start = lines[node.lineno - 1] + node.col_offset
        return _Edit(start, lines[node.end_lineno - 1] + node.end_col_offset, text)

    def text_of(node: Any) -> str:
        edit = at(node, "")
        return data[edit.start : edit.end].decode()

    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            yield at(test.comparators[0], _unequal(test.comparators[0]))
        else:
            yield at(test, f"(not ({text_of(test)}))")
    elif isinstance(statement, ast.With) and len(statement.items) == 1:
        call = statement.items[0].context_expr
        if _name(call) in ("assertRaises", "raises") and isinstance(call, ast.Call) and call.args:
            yield at(call.args[0], _OTHER_EXCEPTION)
    elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        name, positional = _name(call), [arg for arg in call.args if not isinstance(arg, ast.Starred)]
        if len(positional) < len(call.args):
            return
        if name in _EQUALITIES and len(positional) >= 2:
            yield at(positional[1], _unequal(positional[1]))
        elif name in ("assertRaises", "raises") and positional:
            yield at(positional[0], _OTHER_EXCEPTION)
        elif name.startswith("assert") and name[6:] in _OPPOSITES and isinstance(call.func, ast.Attribute):
            yield at(call.func, f"{text_of(call.func.value)}.assert{_OPPOSITES[name[6:]]}")


def _name(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _unequal(node: ast.expr) -> str:
    """Return an expression that is unequal to the value of the given one, and looks like it where that can be had.

    Only one element of a list is replaced, so that elements that equal everything are found out too.
    """
    return ast.unparse(_changed(ast.parse(ast.unparse(node), mode="eval").body))


def _changed(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.List | ast.Tuple) and node.elts and not isinstance(node.elts[0], ast.Starred):
        node.elts[0] = _changed(node.elts[0])
    elif isinstance(node, ast.Dict) and node.values and None not in node.keys:
        node.values[-1] = _changed(node.values[-1])
    elif isinstance(node, ast.Constant) and type(node.value) in (int, str):
        node.value = node.value + 1 if isinstance(node.value, int) else f"{node.value}s"
    else:
        return ast.Call(ast.Name("object", ast.Load()), [], [])
    return node
