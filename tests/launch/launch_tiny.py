"""The launcher with ``tiny_driver.py`` in the place of the training: ``torchrun … launch_tiny.py REPORT MODE``."""

import sys
from pathlib import Path

from verl_comprl.launch.__main__ import main

if __name__ == "__main__":
    code = main([], [str(Path(__file__).with_name("tiny_driver.py")), *sys.argv[1:]])
    print(f"launcher of this node returned {code}", file=sys.stderr)
    sys.exit(code)
