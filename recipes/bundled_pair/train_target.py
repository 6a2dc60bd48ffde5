"""Train the target of the bundled demo pair: a chat model of the Qwen3.5 architecture.

In: nothing but the seeded dialogues of `recipes.bundled_pair.corpus`.
Out: the folder `draftlab/demo/pair/target` (config.json, model.safetensors in bf16, tokenizer,
generation_config.json), `draftlab/demo/pair/prompts.jsonl` and the target's part of the model card
`draftlab/demo/pair/README.md`.
Why: the demo needs a hybrid (gated delta net and full attention) target with a nested config.json,
small enough to ship in a wheel and sure enough of its text that a small drafter can follow it.

Run `python -m recipes.bundled_pair.train_target` from the repository root. It uses one thread.
The weights are fp32 in training with bf16 autocast for the matrix products (1.5 times faster where
the processor knows bf16; `--fp32` turns it off). The loss covers the reply tokens and the
`<|im_end|>` after them, not the prompt: the model never has to write a prompt, and at this size
capacity is what is short.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from recipes.bundled_pair import corpus
from recipes.bundled_pair.tokenizer import (
    MAX_POSITIONS,
    VOCABULARY,
    save_tokenizer,
    train_tokenizer,
)

PAIR = Path("draftlab/demo/pair")
SEED = 20
MAX_LENGTH = 320
MIX = {"code": 0.32, "data": 0.30, "maths": 0.21, "writing": 0.17}
TOKENIZER_DIALOGUES = 4000
HELD_OUT_DIALOGUES = 100
IGNORED = -100
SIZE_LIMIT = 2_900_000


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run; the time it takes is not part of it."""

    dialogues: int = 42_000
    batch_tokens: int = 2048
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    warm_up: float = 0.03
    seed: int = SEED
    autocast: bool = True


@dataclass(frozen=True)
class Example:
    """Token ids of one dialogue and where its reply starts."""

    ids: list[int]
    start: int


@dataclass(frozen=True)
class Score:
    """Held-out result of one domain under teacher forcing."""

    loss: float
    accuracy: float


# ---------------------------------------------------------------------------------------------
# shape


def text_config() -> dict[str, Any]:
    """The language model: 8 layers, every fourth one full attention, as in Qwen3.5."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 208,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def nested_config(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """config.json as a real Qwen3.5 folder nests it; the vision part is a stub without weights.

    The four image and video ids lie outside the vocabulary, so no text can contain them.
    """
    token = tokenizer.convert_tokens_to_ids
    text = text_config() | {
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }
    vision = {
        "model_type": "qwen3_5_vision",
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 1,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": text["hidden_size"],
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": VOCABULARY,
        "video_token_id": VOCABULARY + 1,
        "vision_start_token_id": VOCABULARY + 2,
        "vision_end_token_id": VOCABULARY + 3,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


# ---------------------------------------------------------------------------------------------
# data


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the tokenizer from training dialogues, the same number of each domain."""
    texts: list[str] = []
    for domain in corpus.DOMAINS:
        for item in corpus.dialogues(domain, "train", TOKENIZER_DIALOGUES, SEED):
            texts += [item.user, item.reply]
    return train_tokenizer(texts)


def encode(tokenizer: PreTrainedTokenizerFast, item: corpus.Dialogue) -> Example:
    """The dialogue in the chat template; its prompt is a prefix of it, which is checked."""
    messages = item.messages()
    prompt = str(
        tokenizer.apply_chat_template(
            messages[:1], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    )
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False)).removesuffix("\n")
    if not whole.startswith(prompt):
        raise ValueError(f"the chat template does not extend the prompt of {item.ident}")
    start = len(tokenizer(prompt)["input_ids"])
    return Example(
        tokenizer(prompt)["input_ids"] + tokenizer(whole[len(prompt) :])["input_ids"], start
    )


def training_examples(tokenizer: PreTrainedTokenizerFast, plan: Plan) -> list[Example]:
    """The training set in the proportions of `MIX`, without the few longest dialogues."""
    examples: list[Example] = []
    for domain, share in MIX.items():
        items = corpus.dialogues(domain, "train", round(plan.dialogues * share), plan.seed)
        examples += [encode(tokenizer, item) for item in items]
    return [example for example in examples if len(example.ids) <= MAX_LENGTH]


def batches(examples: list[Example], plan: Plan) -> list[list[Example]]:
    """Batches of similar length (little padding) in random order."""
    rng = random.Random(plan.seed)
    # The noise keeps the same dialogues from always meeting, at the price of a little padding.
    ordered = sorted(examples, key=lambda example: len(example.ids) + rng.uniform(0, 12))
    groups: list[list[Example]] = [[]]
    longest = 0
    for example in ordered:
        longest = max(longest, len(example.ids))
        if longest * (len(groups[-1]) + 1) > plan.batch_tokens:
            groups.append([])
            longest = len(example.ids)
        groups[-1].append(example)
    rng.shuffle(groups)
    return groups


def tensors(group: list[Example], pad: int) -> tuple[Tensor, Tensor]:
    """Right padded ids and, shifted by one, the labels of the reply tokens.

    Nothing looks to the right, so the padding needs no mask.
    """
    width = max(len(example.ids) for example in group)
    ids = torch.full((len(group), width), pad)
    labels = torch.full((len(group), width), IGNORED)
    for row, example in enumerate(group):
        length = len(example.ids)
        ids[row, :length] = torch.tensor(example.ids)
        labels[row, example.start - 1 : length - 1] = ids[row, example.start : length]
    return ids, labels


# ---------------------------------------------------------------------------------------------
# training


def reply_logits(model: Qwen3_5ForCausalLM, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and labels at the positions that have a label; the head runs only there."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    wanted = labels != IGNORED
    return model.lm_head(hidden[wanted]).float(), labels[wanted]


def optimisers(model: Qwen3_5ForCausalLM, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, Adam for all else: it learns from fewer tokens."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        inside = ".layers." in name and parameter.ndim == 2
        (matrices if inside else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=plan.muon_rate, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=plan.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_factor(step: int, steps: int, plan: Plan) -> float:
    """Linear warm-up, then a cosine down to 2 %."""
    warm = max(1, round(plan.warm_up * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def train(model: Qwen3_5ForCausalLM, groups: list[list[Example]], plan: Plan) -> None:
    """One pass over the batches."""
    chosen = optimisers(model, plan)
    bases = [optimiser.param_groups[0]["lr"] for optimiser in chosen]
    pad = int(model.config.pad_token_id or 0)
    began, seen, losses = time.perf_counter(), 0, []
    model.train()
    for step, group in enumerate(groups):
        ids, labels = tensors(group, pad)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
            logits, wanted = reply_logits(model, ids, labels)
        loss = cross_entropy(logits, wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, base in zip(chosen, bases, strict=True):
            optimiser.param_groups[0]["lr"] = base * rate_factor(step, len(groups), plan)
            optimiser.step()
            optimiser.zero_grad()
        seen += sum(len(example.ids) for example in group)
        losses.append(loss.item())
        if step % 50 == 0 or step == len(groups) - 1:
            speed = seen / (time.perf_counter() - began)
            mean = sum(losses[-50:]) / len(losses[-50:])
            print(f"step {step}/{len(groups)}  loss {mean:.3f}  {speed:.0f} tokens/s", flush=True)


def round_to_bf16(model: Qwen3_5ForCausalLM) -> None:
    """Keep fp32 tensors but only bf16 values, so that what is measured is what is saved."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())


# ---------------------------------------------------------------------------------------------
# measuring


@torch.inference_mode()
def held_out_scores(
    model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Score]:
    """Mean loss and argmax accuracy per reply token, by domain."""
    model.eval()
    scores = {}
    for domain in corpus.DOMAINS:
        items = corpus.dialogues(domain, "held_out", HELD_OUT_DIALOGUES, corpus.HELD_OUT_SEED)
        loss, hits, count = 0.0, 0, 0
        for item in items:
            ids, labels = tensors([encode(tokenizer, item)], tokenizer.pad_token_id)
            logits, wanted = reply_logits(model, ids, labels)
            loss += cross_entropy(logits, wanted, reduction="sum").item()
            hits += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        scores[domain] = Score(loss / count, hits / count)
    return scores


@torch.inference_mode()
def greedy(
    model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]
) -> str:
    """The greedy reply, at most 200 tokens."""
    inputs: Any = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = model.generate(
        **inputs, do_sample=False, max_new_tokens=200, pad_token_id=tokenizer.pad_token_id
    )
    reply = made[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(reply, skip_special_tokens=True))


def show_samples(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Print two held-out replies per domain; return the share equal to the reference."""
    exact = {}
    for domain in corpus.DOMAINS:
        items = corpus.dialogues(domain, "held_out", 8, corpus.HELD_OUT_SEED)
        replies = [greedy(model, tokenizer, item.messages()[:1]) for item in items]
        same = [reply == item.reply for reply, item in zip(replies, items, strict=True)]
        exact[domain] = sum(same) / len(same)
        for item, reply in list(zip(items, replies, strict=True))[:2]:
            print(f"--- {domain}\n{item.user}\n>>>\n{reply}\n", flush=True)
    return exact


# ---------------------------------------------------------------------------------------------
# saving


def save_model(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder; tensor names are those of the full (image and text) model."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name.replace("model.", "model.language_model.", 1): value.to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it private, which a wheel would keep
    _write_json(folder / "config.json", nested_config(tokenizer))
    token = tokenizer.convert_tokens_to_ids
    ends = [token("<|im_end|>"), token("<|endoftext|>")]
    generation = {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]}
    _write_json(folder / "generation_config.json", generation)
    save_tokenizer(tokenizer, folder)
    if path.stat().st_size > SIZE_LIMIT:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than {SIZE_LIMIT}")


def check_saved(
    model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Load the folder as a user would and compare it with the trained module."""
    loading: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    loaded, info = loading
    print(f"loading info of {type(loaded).__name__}: {info}")
    if any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise ValueError(f"the saved folder does not load cleanly: {info}")
    text = AutoTokenizer.from_pretrained(folder)
    example = encode(tokenizer, corpus.dialogues("data", "held_out", 1, corpus.HELD_OUT_SEED)[0])
    if text(text.decode(example.ids))["input_ids"] != example.ids:
        raise ValueError("the saved tokenizer gives other ids than the trained one")
    ids = torch.tensor([example.ids])
    with torch.inference_mode():
        same = torch.equal(loaded.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    if not same:
        raise ValueError("the saved model gives other logits than the trained one")


def save_prompts(path: Path) -> None:
    """The 32 held-out prompts, one JSON object a line."""
    lines = [json.dumps(prompt) for prompt in corpus.held_out_prompts()]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


# ---------------------------------------------------------------------------------------------
# model card

BEGIN, END = "<!-- target: begin -->", "<!-- target: end -->"
CARD = """\
## Target

A chat model of the Qwen3.5 architecture, trained from scratch by
`python -m recipes.bundled_pair.train_target`. It is a test piece for drafters, not an assistant.

- Architecture: {layers} layers (every fourth full attention, the others gated delta net), hidden
  {hidden}, {parameters:,} parameters, embedding tied to the head, byte-level BPE with
  {vocabulary:,} entries. `config.json` is nested as in Qwen3.5; the vision part is a stub without
  weights, so load it with `AutoModelForCausalLM`. Weights are bf16; use `dtype=torch.float32`
  where two ways of computing the same token must agree.
- Chat template: ChatML. Thinking is off unless `enable_thinking=True` is given; an empty think
  block then opens the reply. The model has never seen a thought, so thinking on is only a format.
- Data: {dialogues:,} generated dialogues in four domains, {tokens:,} tokens, one pass. `maths`,
  `data` and `writing` come from templates in `recipes/bundled_pair/corpus.py` (Apache-2.0, as this
  repository). `code` holds short functions of the Python {python} standard library (PSF licence).
- Split: by a hash of the content, stated in `corpus.py`. `prompts.jsonl` holds 32 held-out prompts.
- Training: seed {seed}, {steps:,} steps of about {batch:,} tokens, Muon for the layer matrices and
  Adam for the rest, cosine rate, loss on reply tokens only, fp32 weights{autocast}; {minutes:.0f}
  minutes of processor time on one thread with torch {torch}. Another processor or torch version
  gives other last digits.

Held-out result per reply token (teacher forcing, {held_out} dialogues per domain), and the share of
8 greedy replies per domain that equal the reference letter by letter:

| domain | loss (nats) | argmax accuracy | exact replies |
| --- | --- | --- | --- |
{rows}

Limits: it knows its four domains and nothing else. The form of a reply is right nearly always, its
content less often: most worked sums have a wrong digit somewhere, looking up one field of a record
goes wrong more often than converting whole records, and code it completes looks like code but
usually does not do what the docstring says. Renaming and removing work better.
"""


@dataclass(frozen=True)
class Report:
    """What the model card says about a run."""

    parameters: int
    dialogues: int
    tokens: int
    steps: int
    seconds: float
    scores: dict[str, Score]
    exact: dict[str, float]


def card_text(report: Report, plan: Plan) -> str:
    """The target's section of the model card."""
    rows = [
        f"| {domain} | {score.loss:.3f} | {score.accuracy:.1%} | {report.exact[domain]:.0%} |"
        for domain, score in report.scores.items()
    ]
    return CARD.format(
        layers=text_config()["num_hidden_layers"],
        hidden=text_config()["hidden_size"],
        parameters=report.parameters,
        vocabulary=VOCABULARY,
        dialogues=report.dialogues,
        tokens=report.tokens,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        seed=plan.seed,
        steps=report.steps,
        batch=plan.batch_tokens,
        autocast=" with bf16 autocast" if plan.autocast else "",
        minutes=report.seconds / 60,
        torch=torch.__version__.split("+")[0],
        held_out=HELD_OUT_DIALOGUES,
        rows="\n".join(rows),
    )


def save_card(path: Path, section: str) -> None:
    """Replace the target's section and keep the rest, which the drafter's recipe writes."""
    marked = f"{BEGIN}\n{section}{END}"
    if not path.exists():
        head = "# The bundled demo pair\n\nA tiny target and a DFlash drafter for it.\n"
        rest = "## Drafter\n\nNot trained yet.\n"
        path.write_text(f"{head}\n{marked}\n\n{rest}", "utf-8")
        return
    before, found, after = path.read_text("utf-8").partition(BEGIN)
    if not found or END not in after:
        raise ValueError(f"{path} has no marks for the target's section")
    path.write_text(before + marked + after.partition(END)[2], "utf-8")


# ---------------------------------------------------------------------------------------------


def build(pair: Path, plan: Plan) -> None:
    """Everything from nothing: tokenizer, training, measuring, saving, checking."""
    torch.manual_seed(plan.seed)
    tokenizer = build_tokenizer()
    examples = training_examples(tokenizer, plan)
    groups = batches(examples, plan)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**nested_config(tokenizer)["text_config"])).float()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(examples):,} dialogues, {len(groups):,} steps")
    began, busy = time.perf_counter(), time.process_time()
    train(model, groups, plan)
    # The processor's time goes into the card: on a shared machine the clock says little.
    wall, seconds = time.perf_counter() - began, time.process_time() - busy
    round_to_bf16(model)
    save_model(model, tokenizer, pair / "target")
    check_saved(model, tokenizer, pair / "target")
    save_prompts(pair / "prompts.jsonl")
    scores = held_out_scores(model, tokenizer)
    for domain, score in scores.items():
        print(f"{domain:8} held-out loss {score.loss:.3f}  accuracy {score.accuracy:.1%}")
    exact = show_samples(model, tokenizer)
    print(f"replies equal to the reference: {exact}")
    print(f"training took {wall:.0f} s, {seconds:.0f} s of it on the processor")
    tokens = sum(len(example.ids) for example in examples)
    report = Report(parameters, len(examples), tokens, len(groups), seconds, scores, exact)
    save_card(pair / "README.md", card_text(report, plan))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the target of the bundled demo pair.")
    parser.add_argument("--out", type=Path, default=PAIR, help="folder of the pair")
    parser.add_argument("--dialogues", type=int, default=Plan.dialogues, help="training dialogues")
    parser.add_argument("--fp32", action="store_true", help="train without bf16 autocast")
    given = parser.parse_args()
    # One thread gives the same sums on every machine with the same instruction set.
    torch.set_num_threads(1)
    build(given.out, Plan(dialogues=given.dialogues, autocast=not given.fp32))


if __name__ == "__main__":
    main()
