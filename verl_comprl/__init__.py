"""Complementary RL for verl: a policy actor and an experience extractor that learn together around an experience bank.

Importing this package loads nothing but the version. verl finds the rest through the entry point group
``verl.plugins``, which names ``verl_comprl.plugin``; the bank (``verl_comprl.experience``) works without verl.
"""

__version__ = "0.2.0.dev0"
