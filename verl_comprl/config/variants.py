"""Checks of what is off by default, with experience and without: combinations that would not do what they say."""

import math
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_comprl.config.trainer_mode import is_separate
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.names import ADVANTAGE_ESTIMATOR


def variant_mistakes(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each combination that is wrong."""
    if comprl.experience and comprl.extractor.utility == "relative" and comprl.guided_fraction == 1:
        yield "comprl.extractor.utility=relative compares with the free half, but comprl.guided_fraction=1 has none"
    if comprl.actor_critic.train and not comprl.actor_critic.enabled:
        yield "comprl.actor_critic.train=true needs comprl.actor_critic.enabled=true"
    distillation = comprl.self_distillation
    several = {
        "comprl.actor_critic.train=true": comprl.experience and comprl.actor_critic.train,
        "comprl.self_distillation.weight": distillation.weight > 0,
    }
    for name in (name for name, used in several.items() if used):
        if config.algorithm.adv_estimator != ADVANTAGE_ESTIMATOR:
            yield (
                f"{name} needs algorithm.adv_estimator={ADVANTAGE_ESTIMATOR}, which tells the outputs of a rollout "
                f"apart; it is {config.algorithm.adv_estimator}"
            )
        if (count := _mini_batches(config)) > 1 and not config.actor_rollout_ref.actor.shuffle:
            yield (
                f"{name} with {count} mini-batches (data.train_batch_size, actor_rollout_ref.actor.ppo_mini_batch_size)"
                " needs actor_rollout_ref.actor.shuffle=true: verl pads such a batch at its end, and the last "
                "mini-batches would hold padding alone"
            )
    if not distillation.weight:
        return
    if not comprl.experience and distillation.source == "guided":
        yield (
            "comprl.self_distillation.source=guided needs comprl.experience=true: without it no episode is guided; "
            "use source=free"
        )
    correction = config.algorithm.get("rollout_correction") or {}
    wrong = [key for key in ("rollout_is", "rollout_rs", "bypass_mode") if correction.get(key)]
    if wrong == ["bypass_mode"] and _has_no_ratio(config):
        wrong = []
    if wrong:
        yield (
            f"comprl.self_distillation cannot be combined with algorithm.rollout_correction.{wrong[0]}: the server's "
            "log-probs of a distilled episode are those with experience"
        )


def variant_notes(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each combination that works, but perhaps not as expected."""
    actor, weight = config.actor_rollout_ref.actor, comprl.self_distillation.weight
    updates = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size) * actor.ppo_epochs
    steps = (
        f"{updates} optimizer steps on a batch (data.train_batch_size, actor_rollout_ref.actor.ppo_mini_batch_size, "
        "ppo_epochs): from the second on"
    )
    if updates > 1 and _has_no_ratio(config):
        yield (
            "actor_rollout_ref.actor.policy_loss.rollout_correction.loss_type=reinforce has no clip, with "
            f"{steps} nothing limits how far failed actions are pushed down, and the actor may collapse"
        )
    elif updates > 1 and weight > 0:
        yield (
            f"comprl.self_distillation.weight={weight} with {steps} a clipped policy loss stops imitating the tokens "
            "that have become more likely"
        )
    watchdog, episode = comprl.watchdog, comprl.environments.reset_timeout + comprl.environments.episode_timeout
    if watchdog.after and 0 < watchdog.end_after < episode - watchdog.after:
        yield (
            f"comprl.watchdog.end_after={watchdog.end_after:g} may end a run whose last rollouts still have time "
            f"(comprl.environments.reset_timeout + episode_timeout: {episode:g} s)"
        )


def _mini_batches(config: DictConfig) -> int:
    """Return into how many mini-batches the actor's batch is divided; of ``separate_async`` that of a local update."""
    if is_separate(config):
        return 1
    return math.ceil(config.data.train_batch_size / config.actor_rollout_ref.actor.ppo_mini_batch_size)


def _has_no_ratio(config: DictConfig) -> bool:
    """Return whether the actor's loss is −A log π, without the log-probs of the policy that generated."""
    policy_loss = config.actor_rollout_ref.actor.policy_loss
    # The loss does not see algorithm.rollout_correction; its own decides whether it uses the server's log-probs.
    loss_type = (policy_loss.get("rollout_correction") or {}).get("loss_type")
    return (policy_loss.get("loss_mode"), loss_type) == ("bypass_mode", "reinforce")
