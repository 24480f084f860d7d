"""Episodes, calls of the extractor and events of the bank that a run leaves on disk; docs/run_folder.md has the format.

Owns the files: writing them from a thread, and reading them. The trainer and the experience manager decide what is
written. Imports neither torch nor verl.
"""

from verl_comprl.record.reader import RunRecord

__all__ = ["RunRecord"]
