"""``python -m verl_comprl.cli.doctor.ray_probe``: runs one task in a Ray worker and prints what it found as JSON.

Ray is started, or an existing cluster used, as by the launcher; what was started ends with this process.
"""

import json
import sys
from typing import Any

_SECONDS = 240.0
_OBJECT_STORE = 100_000_000
"""Bytes; a probe needs nothing of the third of the memory that Ray takes by default."""


def look_around() -> dict[str, Any]:
    """Return what this process has: versions, and the reason if verl has not loaded our plugin."""
    import verl  # noqa: F401  loads the plugins

    from verl_comprl.launch.versions import installed_versions

    # Before we import it ourselves: the workers of a run rely on verl's import.
    found: dict[str, Any] = {"loaded": "verl_comprl.plugin" in sys.modules, "versions": installed_versions()}
    try:
        from verl_comprl import plugin

        plugin.verify()
        found["plugin_error"] = "" if found["loaded"] else "verl has not imported verl_comprl.plugin"
    except Exception as error:  # sent to the driver as text: the exception's class may not exist there
        found["plugin_error"] = str(error)
    return found


def probe(config: Any) -> dict[str, Any]:
    """Start Ray or connect to it, and run the task."""
    import ray
    from omegaconf import open_dict

    from verl_comprl.platform.detection import on_existing_cluster
    from verl_comprl.platform.ray_session import end_ray
    from verl_comprl.training import complete_config, start_ray

    complete_config(config)
    ray_init = config.ray_kwargs.ray_init
    if not on_existing_cluster(ray_init):
        with open_dict(config):
            ray_init.setdefault("object_store_memory", _OBJECT_STORE)
    try:
        start_ray(config)
        found = ray.get(ray.remote(num_cpus=1, max_retries=0)(look_around).remote(), timeout=_SECONDS)
        return found | {"resources": ray.cluster_resources()}
    finally:
        end_ray()


def main() -> int:
    """Probe with the arguments as overrides."""
    from verl_comprl.config.composing import compose, one_line
    from verl_comprl.display.quiet import quiet_libraries
    from verl_comprl.platform.detection import select_platform

    quiet_libraries()
    select_platform()
    try:
        found = probe(compose(None, None, sys.argv[1:]))
    except Exception as error:  # whatever Ray raises is the finding
        found = {"error": one_line(error)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
