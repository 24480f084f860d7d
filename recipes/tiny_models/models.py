"""Builds a small Qwen3 model with random weights; its supervised training is in ``warm_start``."""

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HEAD_SIZE = 32


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int, heads: int = 3, rope_theta: float = 10_000.0
) -> Qwen3ForCausalLM:
    """Return a randomly initialised model in float32.

    Args:
        tokenizer: Fixes the vocabulary: the model has exactly one embedding per token, since verl masks the logits of
            any others in rollouts but not in training.
        seed: Chooses the weights.
        heads: Attention heads of a layer, of ``HEAD_SIZE`` each; the model is as wide as all of them together.
        rope_theta: Base of the rotary positions; a smaller one tells near positions apart sooner in training.
    """
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    width = heads * HEAD_SIZE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_SIZE,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        # Three times the usual: in a model this narrow, smaller weights make the warm start take several times longer.
        initializer_range=0.06,
        tie_word_embeddings=True,
        **ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(do_sample=True, **ids)
    return model
