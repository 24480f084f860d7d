"""Running verl on a machine without an accelerator. Nothing here is active unless ``VERL_PLATFORM=cpu``."""
