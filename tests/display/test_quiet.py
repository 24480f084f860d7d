"""Other libraries are quiet unless the user wants to hear them."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, warnings
from verl_comprl.display.quiet import quiet_libraries
quiet_libraries()
warnings.warn("torchtitan engine is not available")
print(os.environ.get("VERL_LOGGING_LEVEL"), os.environ.get("TQDM_DISABLE"))
"""


@pytest.mark.parametrize(
    ("environment", "printed", "warned"),
    [
        ({}, "ERROR 1", False),
        ({"VERL_LOGGING_LEVEL": "DEBUG"}, "DEBUG 1", False),
        ({"COMPRL_VERBOSE": "1"}, "None None", True),
    ],
)
def test_what_is_printed(environment: dict[str, str], printed: str, warned: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == printed and ("torchtitan" in done.stderr) == warned, done.stderr


def test_attempts_to_reach_the_hub_are_not_shown() -> None:
    program = """
from verl_comprl.display.quiet import quiet_libraries
quiet_libraries()
from huggingface_hub.utils import logging
logging.get_logger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("HF_HUB_VERBOSITY", "COMPRL_VERBOSE")
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
