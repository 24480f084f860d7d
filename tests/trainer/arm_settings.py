"""Overrides of the runs in ``lent_run.py``: one set per arm, and those that make a run small."""

STEPS = 4
"""Number of steps of the two runs that are compared bit for bit."""

# One prompt per step: with several, verl's random order differs between runs, and floating-point sums depend on it.
COMPARED = [
    "arm=baseline",
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={STEPS}",
    "skip.rollout_tq.enable=true",
    f"skip.rollout_tq.steps={list(range(1, STEPS + 1))}".replace(" ", ""),
]

# verl's asynchronous trainers. What is shared with the other runs of a sweep must be as it is in those.
AHEAD = ["shared/trainer=colocate_async", "actor_rollout_ref.rollout.max_num_seqs=64"]

TRAINERS = {"sync": [], "colocate_async": AHEAD, "separate_async": ["shared/trainer=separate_async"]}
"""Overrides of a run with each of verl's trainers."""

SEPARATE = [
    "shared/trainer=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
]

TWO_STEPS = [
    "trainer.resume_mode=disable",
    "trainer.total_training_steps=2",
    "comprl.drain_timeout=0",
    "comprl.warmup_steps=0",
    "actor_rollout_ref.rollout.n=4",
]

SMALL = [
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.max_actor_ckpt_to_keep=null",
    "trainer.logger=[console]",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    # Both divide the number of rollouts of every run here, including the mix of environments.
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "comprl.extractor.batch_size=8",
    # Two steps are too few for an extractor that leaves the cores to the actor.
    "comprl.extractor.cpu_priority=normal",
    # For the longest prompt of all environments.
    "actor_rollout_ref.rollout.max_model_len=4096",
]

# Without the baseline, and without the full method, which test_training_run covers.
ARMS: dict[str, list[str]] = {
    "offline": ["arm=offline"],
    "static_online": ["arm=static_online", "comprl.merge.every=1"],
    # Everything that is off by default, with a judgement that fits into the model's context. With one prompt per step,
    # the metrics of a step determine what must have been distilled.
    "variants": [
        "data.train_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.optim.lr=1e-4",
        "actor_rollout_ref.rollout.n=8",
        "comprl.actor_critic.enabled=true",
        "comprl.actor_critic.train=true",
        "comprl.actor_critic.max_tokens=16",
        "comprl.self_distillation.weight=0.1",
        "comprl.extractor.utility=relative",
        "comprl.exploration=0.5",
    ],
}

MORE_ARMS = {
    name: [f"arm={name}"]
    for name in (
        "experience_only",
        "all_guided",
        "shared_baseline",
        "no_merge",
        "no_search_and_ask",
        "self_distillation",
        "self_imitation",
    )
}
"""Those for which CI has no time."""

KEY, CANARY = "COMPRL_TEST_KEY", "canary-7c1f5e9d40b2"
"""Environment variable with the key of the endpoint in the run of that name."""

_FROZEN = ["arm=static_online", "extractor.model.path=null", "trainer.save_freq=2", "comprl.drain_timeout=60"]

# One GPU or an API: no second model. In four steps the actor's server is paused and goes on while calls of the
# extractor are running.
BACK_ENDS: dict[str, list[str]] = {
    "endpoint": [
        *_FROZEN,
        "comprl.extractor.backend=endpoint",
        "comprl.extractor.endpoint.model=teacher",
        f"comprl.extractor.endpoint.key_variable={KEY}",
        "comprl.merge.every=1",
    ],
    "actor_as_extractor": [*_FROZEN, "comprl.extractor.backend=actor", "trainer.total_training_steps=4"],
}
