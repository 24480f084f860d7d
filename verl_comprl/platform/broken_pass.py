"""A forward or backward pass of FSDP2 that an exception has broken off: the next one must begin anew.

Otherwise FSDP2 takes it for a part of the broken one and registers no hooks, so that some weights are no longer
trained, without an error. PyTorch's ``reset_iter_state`` (2.13; for 2.11, verl's pin on GPUs, :func:`_forget` does the
same) lets it begin anew, but keeps gradients of whole weights that were not reduced yet, to which the next pass would
add.
"""

from typing import Any

from torch.distributed.fsdp import FSDPModule


def forget_with_gradients(engine: Any) -> None:
    """Let verl's engine, when it clears gradients, forget a pass that was broken off, too.

    It does so when an update has raised, before it offloads the weights; to move some that are whole would break the
    module for good.
    """
    clear = engine.optimizer_zero_grad

    def clear_all() -> None:
        clear()
        begin_anew(engine.module)

    engine.optimizer_zero_grad = clear_all


def begin_anew(module: Any) -> bool:
    """Let the next pass of the root ``module`` begin anew, without gradients; returns whether it can.

    FSDP1 cannot: it adds the gradients that a broken pass has reduced to those of the next one.
    """
    if not isinstance(module, FSDPModule):
        return False
    try:
        root: Any = module._get_fsdp_state()
        states = root._state_ctx.all_states  # none before the first pass
        if any(state._training_state.name != "IDLE" for state in states):
            if hasattr(module, "reset_iter_state"):
                module.reset_iter_state()  # pyright: ignore[reportAttributeAccessIssue]  of PyTorch 2.13
            else:
                _forget(root)
        _drop_whole_gradients(states)
    except Exception as error:  # of what the broken pass has left; what broke it is raised in any case
        print(f"the engine cannot forget a pass that was broken off: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def _drop_whole_gradients(states: Any) -> None:
    """Drop gradients of whole weights, which the optimizer lacks, and the module too once its weights are sharded.

    There are some after a pass that was broken off, and between passes whose gradients are reduced together.
    """
    for state in states:
        for weight in group.fsdp_params if (group := state._fsdp_param_group) else ():
            weight.unsharded_accumulated_grad = None
            if (whole := getattr(weight, "_unsharded_param", None)) is not None:  # since the first pass
                whole.grad = None


def _forget(root: Any) -> None:
    """Drop what a broken pass has left in all modules' states, as FSDP2 of PyTorch 2.11 has them.

    Everything that the device was given is waited for, and not one event after another.
    """
    root._device_handle.synchronize()
    root._comm_ctx.all_gather_state = root._comm_ctx.reduce_scatter_state = None
    root._comm_ctx.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = type(state._training_state).IDLE
        if (group := state._fsdp_param_group) is None:
            continue
        if (work := getattr(group._all_gather_result, "all_gather_work", None)) is not None:
            work.wait()
        group._all_gather_result = group._all_reduce_state = group._partial_reduce_output = None
        group._post_reduce_event = group._reshard_after_forward_event = None
        group._post_forward_indices.clear()
        group._training_state = state._training_state
        group._to_sharded()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False
