"""Runs unittest tests by name inside a sandbox and reports their statuses on a separate channel.

The sandbox's Python executes this program, which needs only the standard library; the host only reads its text. The
tested code runs in the same process, so a patch written against this program can deceive it. It withstands code that
prints, ends the process, has modules named like those of the standard library, or replaces assertion methods.
"""

import json
import os
import sys
import unittest


class Canary(unittest.TestCase):
    """Tests that must fail; if one passes, the tested code has changed unittest itself."""

    def test_equal(self):
        """Two numbers that differ."""
        self.assertEqual(1, 2)

    def test_true(self):
        """A false value."""
        self.assertTrue(False)

    def test_is(self):
        """Two different objects."""
        self.assertIs(None, 1)

    def test_in(self):
        """A member of an empty list."""
        self.assertIn(1, [])

    def test_raises(self):
        """An error that is not raised."""
        with self.assertRaises(ValueError):
            pass

    def test_error(self):
        """An error."""
        raise AssertionError

    def test_fail(self):
        """A failure."""
        self.fail()


def run(tests):
    """Return whether there are tests and all of them pass; a skipped test does not count as passed."""
    result = unittest.TestResult()
    tests.run(result)
    return result.testsRun > 0 and result.wasSuccessful() and not result.skipped


def run_named(loader, name):
    """Return the status of the test, or of all tests, that a name refers to."""
    try:
        return "PASSED" if run(loader.loadTestsFromName(name)) else "FAILED"
    except BaseException:  # whatever the tested code raises, SystemExit included, the next test must run
        return "ERROR"


def main(mark, names, folder):
    """Write the status of each test in ``folder`` between two marks, and exit."""
    # The report keeps the original standard output; whatever the tests print goes nowhere.
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir(folder)
    # After the standard library, so that the repository cannot replace its modules.
    sys.path[:] = [*filter(None, sys.path), folder]
    loader = unittest.TestLoader()
    statuses = {name: run_named(loader, name) for name in names}
    canaries = loader.loadTestsFromTestCase(Canary)
    if any(run(unittest.TestSuite([canary])) for canary in canaries):
        statuses = {}
    data = (mark + json.dumps(statuses) + mark).encode()
    while data:
        data = data[os.write(channel, data) :]
    os._exit(0)  # without running exit handlers, which the tested code may have registered
