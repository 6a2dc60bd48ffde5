"""The light tokenizer makes of a folder's files what transformers makes of them."""

import json
import shutil
from pathlib import Path

import jinja2
import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from draftlab.base.errors import TargetError
from draftlab.target.tokenizer import TokenizerFiles

BUNDLED = Path(__file__).parents[2] / "draftlab/demo/pair/target"
TEXTS = [
    "def f(x):\n    return x",
    " leading",
    "naïve café \u2028 码 🙂",
    "<|im_start|>user",
    "a\n\n\nb",
]
CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "be <brief>"}, {"role": "user", "content": "1 < 2?"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nt\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ],
]


def folder_with(tmp_path, template=None, **config):
    """The bundled tokenizer with another config."""
    folder = tmp_path / "target"
    folder.mkdir()
    shutil.copy(BUNDLED / "tokenizer.json", folder)
    base = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**base, **config}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def edit(folder, **changes):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def both(folder):
    return TokenizerFiles(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize("switch", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
@pytest.mark.parametrize("chat", CHATS)
def test_chats_are_rendered_and_encoded_alike(chat, switch):
    ours, theirs = both(BUNDLED)
    text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **switch)

    assert ours.render(chat, switch) == text
    assert (
        list(ours.encode(text, special=False)) == theirs(text, add_special_tokens=False).input_ids
    )


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_encoded_and_decoded_alike(text):
    ours, theirs = both(BUNDLED)
    ids = list(ours.encode(text, special=True))

    assert ids == theirs(text).input_ids
    assert ours.decode(ids) == theirs.decode(ids)


ADDED = json.loads((BUNDLED / "tokenizer.json").read_text())["added_tokens"]
END = next(token["id"] for token in ADDED if token["content"] == "<|endoftext|>")
FRAME = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}
    },
}


@pytest.mark.parametrize("add_bos", [None, True, False])
@pytest.mark.parametrize("framed", [True, False])
def test_tokens_that_frame_a_text_are_added_alike(tmp_path, framed, add_bos):
    config = {} if add_bos is None else {"add_bos_token": add_bos}
    folder = folder_with(tmp_path, bos_token="<|endoftext|>", **config)
    if framed:
        edit(folder, post_processor=FRAME)
    ours, theirs = both(folder)

    assert list(ours.encode("a b", special=True)) == theirs("a b").input_ids
    plain = theirs("a b", add_special_tokens=False).input_ids
    assert list(ours.encode("a b", special=False)) == plain
    assert (len(ours.encode("a b", special=True)) > len(plain)) == framed


TEMPLATE = """
{%- for m in messages -%}
    {% if m.role == 'skip' %}{% continue %}{% endif %}
    {% generation %}{{ bos_token }}{{ m.content | trim }}{% endgeneration %}
    {{- m | tojson }}{{ {'a': ['<']} | tojson(indent=2) }}
    {%- if tools is none and not documents %}!{% endif %}
{%- endfor %}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}
"""


def test_what_templates_may_use_works_alike(tmp_path):
    folder = folder_with(tmp_path, TEMPLATE, bos_token="<|endoftext|>")
    ours, theirs = both(folder)
    chat = [{"role": "skip", "content": "x"}, {"role": "user", "content": " é <b> "}]

    text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ours.render(chat, {}) == text


MARKS = """
{%- macro say(m) -%}{% generation %}{{ m.content }}|{%- endgeneration %}{%- endmacro -%}
{% for m in messages %}
    {%- if m.role == 'assistant' -%}{% if loop.first %}{{ say(m) }}{% else %}
    {%- generation -%}{{ m.content }}{%- if not loop.last %}!{% endif -%}{%- endgeneration -%}
    {%- endif %}{%- else %}[{{ m.content }}]{% endif %}
{% endfor %}
"""


@pytest.mark.parametrize("chat", [*CHATS, [{"role": "assistant", "content": "<a>"}, *CHATS[2]]])
def test_what_a_template_marks_is_found_where_transformers_finds_it(tmp_path, chat):
    ours, _ = both(folder_with(tmp_path, MARKS))
    (text,), (spans,) = render_jinja_template(
        [chat], chat_template=MARKS, return_assistant_tokens_mask=True
    )
    assert ours.render(chat, {}, opens_answer=False) == text
    assert ours.said_by_assistant(chat, {}) == [tuple(span) for span in spans]


def test_a_template_without_marks_says_nothing_of_them(tmp_path):
    assert both(BUNDLED)[0].said_by_assistant(CHATS[2], {}) is None
    word = "{% for m in messages %}generation {{ m.content }}{% endfor %}"
    assert TokenizerFiles(folder_with(tmp_path, word)).said_by_assistant(CHATS[2], {}) is None


def test_a_template_that_counts_what_stands_between_its_marks_is_refused(tmp_path):
    counts = (
        "{% set t %}{% generation %}{{ messages[-1].content }}{% endgeneration %}{% endset %}"
        "{{ t | length }}"
    )
    with pytest.raises(TargetError, match="changes the text between"):
        TokenizerFiles(folder_with(tmp_path, counts)).said_by_assistant(CHATS[0], {})


@pytest.mark.parametrize("named", [False, True])
def test_a_template_in_the_config_is_found(tmp_path, named):
    template = "{{ messages[0].content }}!"
    entries = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    folder = folder_with(tmp_path, chat_template=entries if named else template)
    ours, theirs = both(folder)

    text = theirs.apply_chat_template(CHATS[0], tokenize=False, add_generation_prompt=True)
    assert ours.render(CHATS[0], {}) == text == "hi!"


def test_a_template_that_refuses_says_why(tmp_path):
    folder = folder_with(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        TokenizerFiles(folder).render(CHATS[0], {})


def test_a_template_runs_no_code_of_ours(tmp_path):
    folder = folder_with(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(jinja2.TemplateError, match="unsafe"):
        TokenizerFiles(folder).render(CHATS[0], {})


@pytest.mark.parametrize(
    ("template", "said"), [("{% if %}", "not valid"), ("{{ bos_token }}", "uses bos_token")]
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path, template, said):
    with pytest.raises(TargetError, match=said):
        TokenizerFiles(folder_with(tmp_path, template)).render(CHATS[0], {})


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(TargetError, match="no tokenizer files"):
        TokenizerFiles(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TargetError, match="cannot be read"):
        TokenizerFiles(tmp_path)


def test_settings_that_a_tokenizer_file_remembers_do_not_cut_or_pad_prompts(tmp_path):
    folder = folder_with(tmp_path)
    edit(
        folder,
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
    )
    text = "one two three four five six"

    assert TokenizerFiles(folder).encode(text, special=True) == TokenizerFiles(BUNDLED).encode(
        text, special=True
    )
