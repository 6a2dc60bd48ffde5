"""The tokenizer of the bundled demo pair: byte-level BPE with 2,048 entries and a chat template.

In: texts to learn the merges from.
Out: a transformers fast tokenizer, saved as `tokenizer.json`, `tokenizer_config.json` and
`chat_template.jinja`.
Why: the text is split before BPE exactly as Qwen3.5 does it (single digits, NFC), because
transformers may rebuild the tokenizer of a `qwen3_5` folder with its own Qwen3.5 class; both
roads must give the same ids. Special tokens come last, as in Qwen's tokenizers, and `<think>` and
`</think>` are added but not special, so that decoding without special tokens shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
THINK = ("<think>", "</think>")
MAX_POSITIONS = 2048

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Merges are learnt on a finer split: a word never joins the sign before it (".join", ",Paris").
# Such merges then do not exist, so a name has the same tokens after every sign, which makes
# copying from the prompt far easier to learn; text itself is still split with SPLIT.
LEARNING_SPLIT = SPLIT.replace(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[\p{L}\p{M}]+")

# Every newline that must survive is written as '\n' inside an expression. Jinja drops the newline
# after a block tag when trim_blocks is on (transformers sets it), so a newline typed at the end of
# a template line could vanish without a trace.
CHAT_TEMPLATE = r"""
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- set parts = message.content.split('</think>') %}
        {%- if loop.index0 > ns.last_user %}
            {%- set given = parts[0].split('<think>')[-1] if parts | length > 1 else '' %}
            {%- set thought = (message.reasoning_content or given).strip('\n') %}
            {{- '<think>\n' + thought + '\n</think>\n\n' }}
        {%- endif %}
        {{- parts[-1].lstrip('\n') }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\n' }}
    {%- else %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""


def _splitter(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges and wrap the result for transformers."""
    inner = Tokenizer(models.BPE())
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = _splitter(LEARNING_SPLIT)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS) - len(THINK),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.pre_tokenizer = _splitter(SPLIT)
    inner.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    inner.add_tokens([AddedToken(text, special=False, normalized=False) for text in THINK])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE.strip("\n")
    if len(tokenizer) != VOCABULARY:
        raise ValueError(f"the texts gave {len(tokenizer)} tokens, not {VOCABULARY}")
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save the tokenizer under a class name that old and new transformers know."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
