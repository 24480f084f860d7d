"""Keeps logs, warnings and progress bars of other libraries off the terminal."""

import logging
import os
import warnings

VARIABLES = {
    "VERL_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TQ_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",  # without it each attempt to reach the hub is a line; the error says it once
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",  # verl's progress bar; ours is drawn by rich
    "PYTHONWARNINGS": "ignore",
}


def is_verbose() -> bool:
    """Return whether ``COMPRL_VERBOSE`` asks for the output of all libraries."""
    return os.environ.get("COMPRL_VERBOSE", "") not in ("", "0")


def quiet_libraries() -> None:
    """Set what the libraries read when they are imported, except what the user has set; workers inherit it."""
    if is_verbose():
        return
    os.environ["COMPRL_VERBOSE"] = "0"  # an empty value cannot be read by the config
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")  # for this process; the variable is for its workers
    logging.raiseExceptions = False  # otherwise each record for a pipe that nobody reads prints a traceback
