"""Twins of tests: what passes a test fails its twin."""

import unittest

import pytest

from env_adapters.swebench.twins import spoil

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
    "for n in []:\n            self.assertEqual(n, 1)",
    "if True: return\n        self.assertEqual(1, 1)",
    "'''Docstring.'''",
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


def run(source: str) -> bool:
    space: dict[str, type[unittest.TestCase]] = {"__name__": "twin"}  # type: ignore[dict-item]
    exec(compile(source, "twin", "exec"), space)  # type: ignore[arg-type]
    result = unittest.TestResult()
    space["CaseTest"]("test_it").run(result)
    return result.testsRun == 1 and result.wasSuccessful()


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_a_twin_fails_where_the_test_passes(body: str, every: bool) -> None:
    source = f"{HEAD}        {body}\n"
    assert run(source)
    for _ in range(4):  # the assertion is chosen at random
        twin, names = spoil(source, ["tests.test_it.CaseTest.test_it"], every=every)
        assert names == {"tests.test_it.CaseTest.test_it"} and not run(twin)


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
def test_a_twin_with_every_assertion_spoiled_finds_a_single_forged_one(lie: str) -> None:
    honest = "        self.assertEqual(1, 1)\n" * 5
    source = f"{LIAR}{HEAD}{honest}        {lie}\n{honest}"
    assert run(source) and run(spoil(source, ["CaseTest.test_it"], every=True)[0])
    found = [run(spoil(source, ["CaseTest.test_it"])[0]) for _ in range(20)]
    assert not all(found), "one assertion alone does not always find it"


@pytest.mark.parametrize("name", ["a/b.py::CaseTest::test_it[1-x]", "test_it (a.b.CaseTest)", "a.CaseTest.test_it"])
def test_names_of_all_formats_are_found(name: str) -> None:
    assert spoil(f"{HEAD}        self.assertTrue(True)\n", [name])[1] == {name}


def test_what_is_left_alone() -> None:
    source = f"{HEAD}        self.assertTrue(True)\n"
    for name in ("a.CaseTest.test_other", "a.OtherTest.test_it"):
        assert spoil(source, [name]) == (source, set())
    expected = source.replace("    def", "    @unittest.expectedFailure\n    def")
    assert spoil(expected, ["a.CaseTest.test_it"]) == (expected, set())
    for odd in ("def test_it(:", "x = " + "-" * 200_000 + "1", "\udcff"):
        assert spoil(odd, ["test_it"]) == (odd, set())


@pytest.mark.parametrize("mark", ["unittest.skipIf(False, 'x')", "unittest.skipUnless(1, 'fails')"])
def test_a_test_that_may_be_skipped_or_speaks_of_failures_has_a_twin(mark: str) -> None:
    source = f"{HEAD}        self.assertTrue(True)\n".replace("    def", f"    @{mark}\n    def")
    for every in (False, True):
        twin, names = spoil(source, ["a.CaseTest.test_it"], every=every)
        assert run(source) and names and not run(twin)


def test_functions_on_one_line_and_outside_of_classes() -> None:
    source = "def test_a(): int('1'); pass\ndef test_b(): assert 1\n"
    for every in (False, True):
        twin, names = spoil(source, ["m.py::test_a", "m.py::test_b"], every=every)
        space: dict[str, object] = {}
        exec(twin, space)
        assert len(names) == 2
        for name in ("test_a", "test_b"):
            with pytest.raises(AssertionError):
                space[name]()  # type: ignore[operator]
