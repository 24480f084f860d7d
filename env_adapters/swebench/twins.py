"""Turns tests into twins that code which passes the tests must fail.

Owns which assertion of a test is changed. The tested code runs in the process of its tests, where it can do anything:
replace assertions, drop failures, return objects that equal everything. It cannot know which of several runs is a real
one: a test that passes together with a twin has been forged.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from env_adapters.swebench.mutations import Edit, Mutations

_RAISE = "raise AssertionError"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Draw:
    """What twins are drawn by.

    Attributes:
        seed: Unknown to the tested code.
        turn: Twins of one seed take turns at the assertions of a test.
    """

    seed: str
    turn: int


def spoil(source: str, tests: Iterable[str], draw: Draw, new: Collection[str] = ()) -> tuple[str, set[str]]:
    """Return a test file in which the tests that it holds are twins, and the names of these tests.

    A twin has one assertion changed. It may be one that is not reached, in a branch: then correct code passes the twin.

    Args:
        source: Text of the test file.
        tests: Names of tests in any format that contains the words of the function's and its class's name.
        draw: What is drawn.
        new: Lines that the tested code's author has not seen. Assertions in them are preferred: a change in a line that
            is known from the repository would show.
    """
    try:
        return _spoil(source, tests, draw, new)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's own limits raise the last two
        return source, set()


def _spoil(source: str, tests: Iterable[str], draw: Draw, new: Collection[str]) -> tuple[str, set[str]]:
    mutations = Mutations(source)
    functions = list(_functions(mutations.tree))
    edits: dict[tuple[str, str], Edit] = {}
    spoiled: set[str] = set()
    for test in tests:
        words = set(re.findall(r"\w+", test.partition("[")[0]))
        for owner, function in functions:
            if function.name in words and (not owner or owner in words) and not _may_fail(function):
                if (owner, function.name) not in edits:
                    edits[owner, function.name] = _twin(mutations, owner, function, draw, new)
                spoiled.add(test)
    data = mutations.data
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


def _twin(mutations: Mutations, owner: str, function: _Function, draw: Draw, new: Collection[str]) -> Edit:
    name = f"{draw.seed} {owner}.{function.name}"
    random = Random(f"{name} {draw.turn}")
    edits = [edit for statement in _statements(function.body) for edit in mutations.of(statement, random)]
    edits = [edit for edit in edits if mutations.line(edit.start) in new] or edits
    if edits:
        Random(name).shuffle(edits)
        return edits[draw.turn % len(edits)]
    # A test without an assertion passes if nothing is raised.
    first = function.body[0]
    decorators = getattr(first, "decorator_list", [])
    start = mutations.start(decorators[0]) - len("@") if decorators else mutations.start(first)
    before = mutations.data[mutations.data.rfind(b"\n", 0, start) + 1 : start].decode()
    return Edit(start, start, f"{_RAISE}{';' if before.strip() else chr(10) + before}")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that are executed if the test passes, those of loops and branches included.

    Not those in ``try``, where an assertion may be meant to fail, and not those of inner functions.
    """
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            if not _catches(statement):
                yield from _statements(statement.body)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.If):
            yield from _statements(statement.body)
        # After these the test may have returned.
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            return


def _catches(statement: ast.With | ast.AsyncWith) -> bool:
    return any(word in ast.unparse(item).lower() for item in statement.items for word in ("raises", "suppress", "warn"))
