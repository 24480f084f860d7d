"""Runs unittest tests by name inside a sandbox and reports their statuses on a separate channel.

The sandbox's Python executes this program, which needs only the standard library; the host only reads its text. It
withstands code that prints, ends the process, or has modules named like those of the standard library. The tested code
runs in the same process and can make any test pass: ``grading`` runs twins of the tests that must fail.
"""

import json
import os
import sys
import unittest


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
    sys.pycache_prefix = "/none"  # bytecode in the repository need not be that of its source
    # After the standard library, so that the repository cannot replace its modules.
    sys.path[:] = [*filter(None, sys.path), folder]
    loader = unittest.TestLoader()
    statuses = {name: run_named(loader, name) for name in names}
    data = (mark + json.dumps(statuses) + mark).encode()
    while data:
        data = data[os.write(channel, data) :]
    os._exit(0)  # without running exit handlers, which the tested code may have registered
