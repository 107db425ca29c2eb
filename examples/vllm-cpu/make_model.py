"""Writes a Llama of 800,000 random weights and a tokenizer trained on this checkout's own docs.

A real model with nothing to download: what it says is nonsense, and the same nonsense every time.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

SEED = 7
END = "<|end|>"
VOCABULARY = 2048
CONTEXT_TOKENS = 16_384
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    logging.disable_progress_bar()
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(directory)
    build_model(tokenizer).save_pretrained(directory)


def train_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|system|>", "<|user|>", "<|assistant|>", END]
    trainer = trainers.BpeTrainer(
        show_progress=False,
        vocab_size=VOCABULARY,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    files = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    tokenizer.train([str(file) for file in files], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=marks[:-1],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.3,  # large enough that greedy answers wander instead of repeating one token
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    main()
