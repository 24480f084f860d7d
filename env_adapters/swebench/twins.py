"""Turns tests into twins that code which passes the tests must fail.

Owns the spoiling of assertions. The tested code runs in the process of its tests, where it can do anything: replace
assertions, drop failures, return objects that equal everything. It cannot know which of several runs is a real one: a
test that passes together with a twin has been forged.
"""

import ast
import re
import secrets
import string
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from textwrap import indent
from typing import Any

_OPPOSITES = {"True": "False", "Equal": "NotEqual", "Is": "IsNot", "IsNone": "IsNotNone", "In": "NotIn"}
_OPPOSITES |= {right: left for left, right in _OPPOSITES.items()}
# None is a base of another exception, and hardly any code raises one.
_RARE_EXCEPTIONS = ("BufferError", "GeneratorExit", "ReferenceError", "StopAsyncIteration")
_EQUALITIES = {"assertEqual", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertMultiLineEqual"}
# Within their tolerance a value that was changed a little would still do.
_RESEMBLANCES = {"assertAlmostEqual", "assertCountEqual", "assertSequenceEqual", "assertSetEqual", "assert_allclose"}
_RESEMBLANCES |= {"assert_almost_equal", "assert_array_almost_equal", "assert_array_equal", "assert_equal"}
_RAISE = "raise AssertionError"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replacement of a part of a source text, as bytes of UTF-8."""

    start: int
    end: int
    text: str


def spoil(source: str, tests: Iterable[str], *, every: bool = False) -> tuple[str, set[str]]:
    """Return a test file in which the tests that it holds are twins, and the names of these tests.

    Args:
        source: Text of the test file.
        tests: Names of tests in any format that contains the words of the function's and its class's name.
        every: Whether a twin spoils all of its assertions and passes as soon as one of them does, so that code which
            forges a single one is found out. Else it spoils one, chosen at random, which is harder to see.
    """
    try:
        return _spoil(source, tests, every)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's own limits raise the last two
        return source, set()


def _spoil(source: str, tests: Iterable[str], every: bool) -> tuple[str, set[str]]:
    functions = list(_functions(ast.parse(source)))
    data = source.encode()
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    edits: dict[tuple[str, str], _Edit] = {}
    spoiled: set[str] = set()
    for test in tests:
        words = set(re.findall(r"\w+", test.partition("[")[0]))
        for owner, function in functions:
            if function.name in words and (not owner or owner in words) and not _may_fail(function):
                if (owner, function.name) not in edits:
                    make = _with_every_assertion if every else _with_one_assertion
                    edits[owner, function.name] = make(function, data, lines)
                spoiled.add(test)
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
    marks = " ".join(ast.unparse(mark) for mark in function.decorator_list)
    return "xfail" in marks or "expectedFailure" in marks


def _edit(node: Any, text: str, lines: list[int]) -> _Edit:
    """Return the replacement of a node."""
    start = lines[node.lineno - 1] + node.col_offset
    return _Edit(start, lines[node.end_lineno - 1] + node.end_col_offset, text)


def _with_one_assertion(function: _Function, data: bytes, lines: list[int]) -> _Edit:
    found = [spoiled for statement in _certain(function.body) if (spoiled := _spoiled(statement))]
    if found:
        node, text = secrets.choice(found)
        return _edit(node, text, lines)
    first = function.body[0]
    start = lines[first.lineno - 1] + first.col_offset
    before = data[lines[first.lineno - 1] : start]
    return _Edit(start, start, f"{_RAISE}{';' if before.strip() else chr(10) + before.decode()}")


def _with_every_assertion(function: _Function, data: bytes, lines: list[int]) -> _Edit:
    twin = deepcopy(function)
    twin.decorator_list = []
    twin.body = [*_tried(twin.body), _statement(_RAISE)]
    return _edit(function, indent(ast.unparse(twin), " " * function.col_offset).lstrip(), lines)


def _tried(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements of which no assertion ends the test, unless it passes although it is spoiled."""
    tried: list[ast.stmt] = []
    for statement in body:
        if spoiled := _spoiled(statement):
            node, text = spoiled
            _put(statement, node, ast.parse(text, mode="eval").body)
            attempt = _statement("try:\n pass\nexcept Exception:\n pass\nelse:\n return")
            assert isinstance(attempt, ast.Try)
            attempt.body = [statement]
            tried.append(attempt)
        else:
            # Not in handlers of exceptions, where an assertion may be meant to fail, and not in inner functions.
            if isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.If):
                statement.body, statement.orelse = _tried(statement.body), _tried(statement.orelse)
            elif isinstance(statement, ast.With | ast.AsyncWith) and not _catches(statement):
                statement.body = _tried(statement.body)
            tried.append(_without_return(statement))
    return tried


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _without_return(statement: ast.stmt) -> ast.stmt:
    """Return a statement that fails where it returned: a twin must not pass by an end of its own test."""

    class Fail(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if isinstance(node, ast.Return):
                return _statement(_RAISE)
            inner = isinstance(node, _Function | ast.Lambda | ast.ClassDef)
            made_here = isinstance(node, ast.Try) and [ast.unparse(part) for part in node.orelse] == ["return"]
            return node if inner or made_here else self.generic_visit(node)

    return Fail().visit(statement)


def _put(statement: ast.stmt, old: ast.expr, new: ast.expr) -> None:
    """Replace an expression of a statement."""

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    Put().visit(statement)


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that are executed to their ends whenever the test passes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With) and not _catches(statement):
            yield from _certain(statement.body)
        # After these the test may have returned.
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            return


def _catches(statement: ast.With | ast.AsyncWith) -> bool:
    return any(word in ast.unparse(item).lower() for item in statement.items for word in ("raises", "suppress", "warn"))


def _spoiled(statement: ast.stmt) -> tuple[ast.expr, str] | None:
    """Return which expression of an assertion is to be replaced, and by what, so that it fails where it passes."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return test.comparators[0], _unequal(test.comparators[0])
        return test, f"(not ({ast.unparse(test)}))"
    if isinstance(statement, ast.With) and len(statement.items) == 1:
        call = statement.items[0].context_expr
        if _name(call) in ("assertRaises", "raises") and isinstance(call, ast.Call) and call.args:
            return call.args[0], _other_exception(call.args[0])
    if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call):
        return None
    name, positional = _name(call), call.args
    if any(isinstance(argument, ast.Starred) for argument in positional):
        return None
    if name in _EQUALITIES and len(positional) >= 2:
        return positional[1], _unequal(positional[1])
    if name in _RESEMBLANCES and len(positional) >= 2:
        return positional[1], repr(_word())
    if name in ("assertRaises", "raises") and positional:
        return positional[0], _other_exception(positional[0])
    if name.startswith("assert") and name[6:] in _OPPOSITES and isinstance(call.func, ast.Attribute):
        return call.func, f"{ast.unparse(call.func.value)}.assert{_OPPOSITES[name[6:]]}"
    return None


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
        return ast.Constant(_word())
    return node


def _word() -> str:
    """Return a text that no code returns by accident; code that reads it in the test returns it, and is found out."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(10))


def _other_exception(node: ast.expr) -> str:
    return secrets.choice([name for name in _RARE_EXCEPTIONS if name not in ast.unparse(node)])
