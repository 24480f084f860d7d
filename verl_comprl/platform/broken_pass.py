"""A forward or backward pass of FSDP2 that an exception has broken off: the next one must begin anew.

Otherwise FSDP2 takes it for a part of the broken one and registers no hooks, so that some weights are no longer
trained, without an error. PyTorch's ``reset_iter_state`` (2.13; 2.11 has nothing) lets it begin anew, but keeps
gradients of whole weights that were not reduced yet, to which the next pass would add.
"""

from typing import Any


def clear_whole_gradients(engine: Any) -> None:
    """Let verl's engine, when it clears gradients, also clear those of whole weights, which its optimizer lacks.

    It does so when an update has raised, and must then: later it may shard the weights, to offload them, which hides
    their gradients.
    """
    clear = engine.optimizer_zero_grad

    def clear_all() -> None:
        clear()
        engine.module.zero_grad()

    engine.optimizer_zero_grad = clear_all


def is_broken_off(module: Any) -> bool:
    """Return whether a pass of the root ``module`` has begun and not ended."""
    states = module._get_fsdp_state()._state_ctx.all_states  # none before the first pass
    return any(state._training_state.name != "IDLE" for state in states)


def begin_anew(module: Any) -> bool:
    """Let the next pass of the root ``module`` begin anew; returns whether it can."""
    try:
        if not is_broken_off(module):
            return True
        if not hasattr(module, "reset_iter_state"):
            return False
        module.reset_iter_state()
    except Exception as error:  # of what the broken pass has left; what broke it is raised in any case
        print(f"the engine cannot forget a pass that was broken off: {type(error).__name__}: {error}", flush=True)
        return False
    return True
