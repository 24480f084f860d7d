"""The names under which verl and Ray know the parts of verl-comprl; imports nothing, so any module may import it."""

TRAINERS = ("comprl_sync", "comprl_colocate_async", "comprl_separate_async")
"""``trainer.v1.trainer_mode``; each is verl's mode of the same name after ``comprl_``."""

ADVANTAGE_ESTIMATOR = "comprl_subgroup"
"""``algorithm.adv_estimator``."""

AGENT_LOOP = "comprl_agent"
"""``actor_rollout_ref.rollout.agent.default_agent_loop``."""

EXTRACTOR_LOSS = "comprl_cispo"
"""``extractor.actor.policy_loss.loss_mode``."""

FADING_LOSS = "comprl_cispo_fading"
"""The same without the lower bound of the ratio where the advantage is negative."""

GLOO_ENGINE = "comprl_gloo"
"""``actor_rollout_ref.rollout.checkpoint_engine.backend``."""

EXTRACTOR_ROLLOUT = "comprl_extractor_vllm"
"""``extractor.rollout.name``."""

FIRST_EXTRACTOR_REPLICA = 1000
"""Rank of the extractor's first server. The actor's count from 0, and no run has a thousand of them."""


def manager_name(job_id: str, run: str) -> str:
    """Return the name of a run's experience manager, a Ray actor.

    Args:
        job_id: Of the Ray job.
        run: The run's folder, ``trainer.default_local_dir``; the manager of a sweep's next run starts early.
    """
    return f"comprl_experience_manager_{job_id}_{run}"
