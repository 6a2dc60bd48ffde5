"""The target's tokenizer and chat template from their files alone; no torch, no transformers.

In:   tokenizer.json, tokenizer_config.json and the chat template of a model folder.
Out:  token ids, and conversations as text, the same as transformers makes of them.

transformers imports torch wherever torch is installed, and a machine that only asks a server may
have none. What is done here follows transformers 5.24: `utils/chat_template_utils.py`,
`_cached_compile_jinja_template`, and `tokenization_utils_tokenizers.py`, `TokenizersBackend`.
tests/target/test_tokenizer.py holds the two together.

A chat template is a program from outside: it runs in jinja's immutable sandbox.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from draftlab.base.errors import TargetError
from draftlab.base.records import read_json, sha256_file

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_LEGACY_TEMPLATE = "chat_template.json"
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_OPENS, _ENDS = "draftlab_assistant_opens", "draftlab_assistant_ends"
"""Variables that stand around what a template marks as the assistant's."""


class TokenizerFiles:
    """A tokenizer read from a model folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / _FILE).is_file():
            raise TargetError(
                f"{folder} has no tokenizer files: {_FILE} is needed to ask a server.",
                mend=f'Copy {_FILE} there, or give prompts as {{"input_ids": [...]}}.',
            )
        self._folder = folder
        self._tokenizer = _read_tokenizer(folder / _FILE)
        config = _read_if_any(folder / _CONFIG)
        self._special_tokens = _special_tokens({**_read_if_any(folder / _SPECIAL_TOKENS), **config})
        self.chat_template = _chat_template(folder, config)
        self._compiled: jinja2.Template | None = None

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text; with `special`, those that frame every text too."""
        # add_bos_token in the config is not read: transformers 5 leaves it to tokenizer.json too.
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def render(
        self,
        messages: Sequence[dict[str, str]],
        switch: Mapping[str, bool],
        *,
        opens_answer: bool = True,
    ) -> str:
        """A conversation as text; with `opens_answer`, as the text that opens the next answer.

        Raises:
            TargetError: the chat template is no valid one, or uses a token that is nowhere given.
            jinja2.TemplateError: the template refuses this conversation.
        """
        return self._render(messages, {**switch, "add_generation_prompt": opens_answer})

    def said_by_assistant(
        self, messages: Sequence[dict[str, str]], switch: Mapping[str, bool]
    ) -> list[tuple[int, int]] | None:
        """Which characters of the rendered conversation the template marks as the assistant's.

        Spans from `{% generation %}` to `{% endgeneration %}`, in the text that `render` gives
        without opening an answer; None where the template has no such marks.

        Raises:
            TargetError: as `render`, or the template changes what stands between the marks.
            jinja2.TemplateError: as `render`.
        """
        if not _GENERATION_TAG.search(self.chat_template):
            return None
        token = secrets.token_hex(16)  # no text holds it
        marks = {_OPENS: f"<{token}", _ENDS: f"{token}>"}
        marked = self._render(messages, {**switch, **marks, "add_generation_prompt": False})
        pieces = re.split(f"(<{token}|{token}>)", marked)
        spans, text, begun = [], "", None
        for piece in pieces:
            if piece == marks[_OPENS]:
                begun = len(text)
            elif piece == marks[_ENDS] and begun is not None:
                spans.append((begun, len(text)))
                begun = None
            else:
                text += piece
        if text != self.render(messages, switch, opens_answer=False):
            raise TargetError(
                f"{self._folder}: its chat template changes the text between its generation marks.",
                mend="Take the {% generation %} marks out of a copy of the template.",
            )
        return spans

    def _render(self, messages: Sequence[dict[str, str]], names: Mapping[str, str | bool]) -> str:
        if self._compiled is None:
            self._compiled = self._compile()
        given = {name: token for name, token in self._special_tokens.items() if token is not None}
        return self._compiled.render(
            messages=list(messages),
            tools=None,
            documents=None,
            **{**given, _OPENS: "", _ENDS: "", **names},
        )

    def _compile(self) -> jinja2.Template:
        environment = _environment()
        try:
            needed = meta.find_undeclared_variables(environment.parse(self.chat_template))
            compiled = environment.from_string(self.chat_template)
        except jinja2.TemplateSyntaxError as error:
            raise TargetError(
                f"{self._folder}: its chat template is not valid, line {error.lineno}: {error}.",
                mend="Mend the template, or give prompts as input_ids.",
            ) from error
        for name in ("bos_token", "eos_token"):
            if name in needed and name not in self._special_tokens:
                raise TargetError(
                    f"{self._folder}: its chat template uses {name}, which {_CONFIG} does not "
                    "give.",
                    mend=f"Add {name} to {_CONFIG} (null where the model has none).",
                )
        return compiled


def tokenizer_digest(folder: Path) -> str:
    """Hex SHA-256 of the folder's tokenizer.json."""
    return sha256_file(folder / _FILE)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise TargetError(
            f"{path} cannot be read as a tokenizer: {str(error)[:200]}.", mend="Copy it again."
        ) from error
    # Files remember how somebody last used them; prompts are never cut or padded here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_if_any(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Every `..._token` of a config as its text; None where it says that there is none."""
    found: dict[str, str | None] = {}
    for name, value in config.items():
        if not name.endswith("_token") or isinstance(value, bool):
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if content is None or isinstance(content, str):
            found[name] = content
    return found


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str:
    """The default template: a file of its own wins over the config, as in transformers."""
    if (folder / _TEMPLATE).is_file():
        return (folder / _TEMPLATE).read_text(encoding="utf-8")
    found = config.get("chat_template") or _read_if_any(folder / _LEGACY_TEMPLATE).get(
        "chat_template"
    )
    if isinstance(found, list):  # named ones: [{"name": ..., "template": ...}]
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    return found if isinstance(found, str) else ""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant said, for masks; the body is kept as it is.

    Two variables are printed around it, empty but where `said_by_assistant` looks for the places.
    """

    tags = {"generation"}  # noqa: RUF012 (jinja's own contract)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        opens, ends = (
            nodes.Output([nodes.Name(name, "load")], lineno=line) for name in (_OPENS, _ENDS)
        )
        return [opens, nodes.Scope(body, lineno=line), ends]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates pass it by position or name)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Plain JSON; jinja's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
