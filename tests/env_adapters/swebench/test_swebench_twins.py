"""Twins of tests: what passes a test fails its twin."""

import ast
import re
import unittest

import pytest

from env_adapters.swebench.twins import Draw, spoil

HEAD = "import unittest\nimport pytest\nfrom contextlib import nullcontext\n\n\n"
HEAD += "class CaseTest(unittest.TestCase):\n    def test_it(self):\n"
# Every one of these passes.
BODIES = (
    "self.assertEqual(1 + 1, 2)",
    "self.assertEqual([1 + 1, 3], [2, 3])",
    "self.assertEqual({'ä': [1]}, {'ä': [1]}, 'message')",
    "self.assertEqual('ä' * 2, 'ää')",
    "self.assertEqual(len('a'), True)",
    "self.assertEqual((), ())",
    "self.assertEqual([str(1)], [str(1)])",
    "self.assertEqual([*'ab'], [*'ab'])",
    "self.assertTrue(1)",
    "self.assertNotEqual(1, 2)",
    "self.assertIn(1, [1])",
    "self.assertIsNone(None)",
    "with self.assertRaises(ValueError):\n            int('x')",
    "self.assertRaises(ValueError, int, 'x')",
    "with self.assertRaises(ValueError), nullcontext():\n            int('x')",
    "with nullcontext():\n            self.assertIs(None, None)",
    "assert 1 + 1 == 2",
    "assert 'a' in (\n            'abc'\n        ), 'message'",
    "for n in (1, 2):\n            self.assertEqual(n, n)",
    "assert not 0 and 'a' in 'b a' and (1) < (2)",
    "assert 0 or 1",
    "self.assertTupleEqual((1, None), (1, None))",
    "self.assertEqual(b'x\\x00', b'x\\x00')",
    "self.assertEqual(3, len('abc'))",
    "if True: return\n        self.assertEqual(1, 1)",
    "'''Docstring.'''",
    "@str\n        def inner():\n            return 1",
    "try:\n            int('x')\n        except ValueError:\n            return\n        self.fail()",
    "with pytest.raises(ValueError):\n            int('x')",
    "for n in (1, 2):\n            with self.subTest(n):\n                self.assertEqual(n, n)",
    "while True:\n            assert 1\n            return",
    "if True:\n            with nullcontext():\n                return\n        self.assertEqual(1, 1)",
    "def inner():\n            return 1\n        self.assertEqual(inner(), 1)",
    "with self.assertRaises(AssertionError):\n            self.assertEqual(1, 2)",
    "try:\n            self.assertEqual(1, 2)\n        except AssertionError:\n            pass",
    "numbers = iter([1, 2, 3])\n        self.assertEqual(next(numbers), 1)\n        self.assertEqual(next(numbers), 2)",
    "self.assertAlmostEqual(1, 1.5, delta=1)",
    "self.assertCountEqual([1, 2], [2, 1])",
)

DRAW = Draw("seed", 0)


def run(source: str) -> bool:
    space: dict[str, type[unittest.TestCase]] = {"__name__": "twin"}  # type: ignore[dict-item]
    exec(compile(source, "twin", "exec"), space)  # type: ignore[arg-type]
    result = unittest.TestResult()
    space["CaseTest"]("test_it").run(result)
    return result.testsRun == 1 and result.wasSuccessful()


def twins(source: str, count: int = 6) -> list[str]:
    made = [spoil(source, ["tests.test_it.CaseTest.test_it"], Draw("seed", turn)) for turn in range(count)]
    assert all(names == {"tests.test_it.CaseTest.test_it"} for _, names in made)
    return [twin for twin, _ in made]


@pytest.mark.parametrize("body", BODIES)
def test_a_twin_fails_where_the_test_passes(body: str) -> None:
    source = f"{HEAD}        {body}\n"
    assert run(source)
    assert not any(map(run, twins(source)))


# An object that equals everything, behind assertions that hold.
LIAR = "class Liar:\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n\n\n"


@pytest.mark.parametrize(
    "lie",
    [
        "self.assertEqual(Liar(), [1, 2])",
        "assert Liar() == {'a': 1}",
        "for n in (1, 2):\n            self.assertEqual(Liar(), n)",
        "with self.subTest('x'):\n            if True:\n                self.assertEqual(Liar(), 'x')",
        "self.assertAlmostEqual(Liar(), 1.5)",
    ],
)
def test_twins_take_turns_at_the_assertions_and_find_a_single_forged_one(lie: str) -> None:
    honest = "        self.assertEqual(1, 1)\n"
    source = f"{LIAR}{HEAD}{honest}        {lie}\n{honest}"
    assert run(source) and sum(map(run, twins(source, 3))) == 1


STYLE = f"""{HEAD}        self.assertEqual(
            list(self.read("one  two", 40)),  # a comment
            ["one", 'two', "one  three", 17],
        )
        with self.assertRaises(KeyError):
            self.read("nothing")
        self.assertEqual(self.read("all", 40), "one")
"""


def test_a_twin_is_written_as_the_test_is() -> None:
    """Whatever goes by what no person would write finds nothing: only words, numbers and texts are others."""
    form = re.compile(r"\"[\w ]+\"|'\w+'|\w+")
    for twin in twins(STYLE, 40):
        if 'read("nothing")' in twin:
            assert twin != STYLE and form.sub("", twin) == form.sub("", STYLE)


def test_a_unique_literal_becomes_a_unique_one_and_a_repeated_one_a_repeated_one() -> None:
    values = ["here", "there", 5]
    source = f"{HEAD}        self.assertEqual(self.read('here', 5, 7, 7, 5), {values})\n"
    changed: set[object] = set()
    for twin in twins(source, 40):
        others = ast.literal_eval(twin.partition("), ")[2].strip()[:-1])
        ((before, after),) = [pair for pair in zip(values, others, strict=True) if len(set(pair)) > 1]
        changed.add(before)
        assert (twin.count(repr(after)) > 1) == (before != "there")
    assert changed == set(values)


def test_a_refused_call_becomes_one_that_is_known_to_return_or_another_exception() -> None:
    """Code that makes every test pass that wants the exception of the issue passes the first of these."""
    calls = {twin.split("\n")[-3].strip() for twin in twins(STYLE, 40)}
    assert calls == {'self.read("nothing")', 'self.read("all", 40)'}
    assert len({twin.split("\n")[-4] for twin in twins(STYLE, 40)}) > 3


def test_assertions_that_the_author_of_the_code_has_not_seen_are_preferred() -> None:
    source = f"{HEAD}        self.assertEqual(1, 1)\n        self.assertEqual(2, 2)\n"
    for turn in range(6):
        twin, _ = spoil(source, ["CaseTest.test_it"], Draw("seed", turn), {"self.assertEqual(2, 2)"})
        assert "assertEqual(1, 1)" in twin and "assertEqual(2, 2)" not in twin


@pytest.mark.parametrize("name", ["a/b.py::CaseTest::test_it[1-x]", "test_it (a.b.CaseTest)", "a.CaseTest.test_it"])
def test_names_of_all_formats_are_found(name: str) -> None:
    assert spoil(f"{HEAD}        self.assertTrue(True)\n", [name], DRAW)[1] == {name}


def test_what_is_left_alone() -> None:
    source = f"{HEAD}        self.assertTrue(True)\n"
    for name in ("a.CaseTest.test_other", "a.OtherTest.test_it"):
        assert spoil(source, [name], DRAW) == (source, set())
    expected = source.replace("    def", "    @unittest.expectedFailure\n    def")
    assert spoil(expected, ["a.CaseTest.test_it"], DRAW) == (expected, set())
    for odd in ("def test_it(:", "x = " + "-" * 200_000 + "1", "\udcff"):
        assert spoil(odd, ["test_it"], DRAW) == (odd, set())


@pytest.mark.parametrize("mark", ["unittest.skipIf(False, 'x')", "unittest.skipUnless(1, 'fails')"])
def test_a_test_that_may_be_skipped_or_speaks_of_failures_has_a_twin(mark: str) -> None:
    source = f"{HEAD}        self.assertTrue(True)\n".replace("    def", f"    @{mark}\n    def")
    for turn in (0, 1):
        twin, names = spoil(source, ["a.CaseTest.test_it"], Draw("seed", turn))
        assert run(source) and names and not run(twin)


def test_functions_on_one_line_and_outside_of_classes() -> None:
    source = "def test_a(): int('1'); pass\ndef test_b(): assert 1\n"
    for turn in (0, 1):
        twin, names = spoil(source, ["m.py::test_a", "m.py::test_b"], Draw("seed", turn))
        space: dict[str, object] = {}
        exec(twin, space)
        assert len(names) == 2
        for name in ("test_a", "test_b"):
            with pytest.raises(AssertionError):
                space[name]()  # type: ignore[operator]
