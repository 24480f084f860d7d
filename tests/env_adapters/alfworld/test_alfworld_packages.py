"""Packages that ALFWorld needs at run time."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Direct and indirect requirements in the metadata of alfworld, textworld and jericho that are not needed.
UNNEEDED = ("alfworld", "spacy", "thinc", "more_itertools", "hashids", "tqdm", "termcolor", "prompt_toolkit", "psutil")
CODE = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {UNNEEDED}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import env_adapters
environment = env_adapters.make("alfworld", data=sys.argv[1])
environment.reset(seed=0)
print(environment.step("inventory")[0])
"""


def test_a_game_runs_without_packages_that_only_metadata_requires(data: str) -> None:
    command = [sys.executable, "-c", CODE, data]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "You are not carrying anything.\n"
