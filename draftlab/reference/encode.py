"""Prompts as token ids: rendered with the target's chat template, encoded with its tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import jinja2

from draftlab.base.errors import CompletionsError
from draftlab.reference.completions import Thinking
from draftlab.reference.prompts import Prompt


class Tokenizer(Protocol):
    """What prompts need of a tokenizer, whoever reads its files."""

    chat_template: str
    """Empty where there is none."""

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text; with `special`, those that frame every text too."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        ...

    def render(
        self,
        messages: Sequence[dict[str, str]],
        switch: Mapping[str, bool],
        *,
        opens_answer: bool = True,
    ) -> str:
        """A conversation as text; with `opens_answer`, as the text that opens the next answer."""
        ...


class PromptEncoder:
    """Turns prompts into token ids; reads the tokenizer when first needed."""

    def __init__(
        self, target_folder: Path, thinking: Thinking, read: Callable[[Path], Tokenizer]
    ) -> None:
        self._folder = target_folder
        self._thinking = thinking
        self._read = read
        self._tokenizer: Tokenizer | None = None
        self.template_digest = ""

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer.

        Raises:
            TargetError: the folder has none that can be read.
        """
        if self._tokenizer is None:
            self._tokenizer = self._read(self._folder)
        return self._tokenizer

    @property
    def was_read(self) -> bool:
        """Whether anything has needed the tokenizer so far."""
        return self._tokenizer is not None

    @property
    def switch(self) -> dict[str, bool]:
        """What the thinking mode passes to the chat template."""
        return {} if self._thinking == "template" else {"enable_thinking": self._thinking == "on"}

    def encode(self, prompt: Prompt, vocab_size: int) -> tuple[int, ...]:
        """Token ids of one prompt.

        Raises:
            CompletionsError: the prompt renders to nothing, or an id is outside the vocabulary.
        """
        if prompt.input_ids is not None:
            ids = prompt.input_ids
        elif prompt.prompt is not None:
            ids = self.tokenizer.encode(prompt.prompt, special=True)
        else:
            messages = [message.model_dump() for message in prompt.messages or ()]
            text = self.render(messages, prompt.key)
            ids = self.tokenizer.encode(text, special=False)
        if not ids:
            raise CompletionsError(
                f"prompt {prompt.key!r} has no tokens.", mend="Give it some text."
            )
        if max(ids) >= vocab_size:
            raise CompletionsError(
                f"prompt {prompt.key!r} has token id {max(ids)}; the target's ids end at "
                f"{vocab_size - 1}.",
                mend="Were these input_ids made with another tokenizer?",
            )
        return ids

    def render(
        self, messages: Sequence[dict[str, str]], key: str, *, opens_answer: bool = True
    ) -> str:
        """A conversation as the target's template writes it; `key` names it in errors.

        Raises:
            CompletionsError: there is no template, it lacks the thinking switch that is set, or it
                refuses the conversation.
        """
        template = self.tokenizer.chat_template
        if not template:
            raise CompletionsError(
                f"prompt {key!r} is a chat and {self._folder} has no chat template.",
                mend='Give {"prompt": ...} lines for a base model.',
            )
        if self.switch and "enable_thinking" not in template:
            raise CompletionsError(
                f"thinking {self._thinking!r} was asked for; this chat template has no such "
                "switch.",
                mend="Leave --thinking out.",
            )
        self.template_digest = hashlib.sha256(template.encode()).hexdigest()
        try:
            return self.tokenizer.render(messages, self.switch, opens_answer=opens_answer)
        except jinja2.TemplateError as error:
            raise CompletionsError(
                f"prompt {key!r}: the chat template refuses it: {error}.",
                mend="Look at its roles and their order.",
            ) from error
