"""Support for verl on a machine without an accelerator; active if ``VERL_PLATFORM=cpu``, which ``detection`` sets."""
