"""Runs tests by name in a sandbox and reports on a channel of its own.

It is a program for the sandbox's Python, with nothing but the standard library; on the host it is only read. The code
under repair runs in the same process, so that a patch which looks for this program can deceive it. What it withstands:
printing, ending the process, modules in the repository that are called like those of the standard library, and
assertions made toothless.
"""

import json
import os
import sys
import unittest


class Canary(unittest.TestCase):
    """Tests that cannot pass, unless somebody has changed what a test is."""

    def test_equal(self):
        """Two numbers that differ."""
        self.assertEqual(1, 2)

    def test_true(self):
        """What is false."""
        self.assertTrue(False)

    def test_is(self):
        """Two objects."""
        self.assertIs(None, 1)

    def test_in(self):
        """A member of nothing."""
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
    """Return whether all of some tests pass, and there are any; a skipped test has not passed."""
    result = unittest.TestResult()
    tests.run(result)
    return result.testsRun > 0 and result.wasSuccessful() and not result.skipped


def run_named(loader, name):
    """Return the status of a test, or of all that a name stands for."""
    try:
        return "PASSED" if run(loader.loadTestsFromName(name)) else "FAILED"
    except BaseException:  # whatever the code under repair thinks of, the next test is run
        return "ERROR"


def main(mark, names, folder):
    """Write the status of each test in ``folder`` between two marks, and end."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir(folder)
    # Behind the standard library, whose modules the repository cannot replace then.
    sys.path[:] = [*filter(None, sys.path), folder]
    loader = unittest.TestLoader()
    statuses = {name: run_named(loader, name) for name in names}
    canaries = loader.loadTestsFromTestCase(Canary)
    if any(run(unittest.TestSuite([canary])) for canary in canaries):
        statuses = {}
    data = (mark + json.dumps(statuses) + mark).encode()
    while data:
        data = data[os.write(channel, data) :]
    os._exit(0)
