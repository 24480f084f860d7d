"""The CPU as a verl platform: the device, its (absent) memory and its Ray resource.

One logical "GPU" slot of Ray stands for one model's place on the machine; which slots exist is the launcher's business
(``ray_kwargs.ray_init.num_gpus``).
"""

import types
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _memory_info(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _resident_bytes(*_: Any) -> int:
    return psutil.Process().memory_info().rss


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _device_module() -> types.ModuleType:
    """Return a stand-in for ``torch.cuda``: ``torch.cpu`` plus what verl calls that ``torch.cpu`` lacks."""
    module = types.ModuleType("verl_comprl.platform.cpu_device")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
    module.__dict__.update(
        current_device=lambda: "cpu",
        device_count=lambda: 1,
        get_device_name=lambda *_: "cpu",
        is_available=lambda: True,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        mem_get_info=_memory_info,
        memory_allocated=_resident_bytes,
        memory_reserved=_resident_bytes,
        max_memory_allocated=_resident_bytes,
        max_memory_reserved=_resident_bytes,
        reset_peak_memory_stats=_nothing,
        set_device=_nothing,
        synchronize=_nothing,
        empty_cache=_nothing,
        ipc_collect=_nothing,
    )
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """``VERL_PLATFORM=cpu``."""

    _module = _device_module()

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: self._module)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # verl's own detection must not pick it: VERL_PLATFORM does, see detection.py

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # weights go to the server through shared memory

    def cudart(self) -> None:
        return None
