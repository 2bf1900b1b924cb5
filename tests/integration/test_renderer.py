"""The renderer on real tokenizers: exactly the template's ids, for the tiny and the small model."""

from pathlib import Path

import pytest

from whale.errors import EngineError
from whale.models import resolve
from whale.renderers import for_tokenizer
from whale.testing.models import DEFAULT_SYSTEM, tiny_tokenizer
from whale.types import ToolSpec

CONVERSATIONS = [
    [{"role": "user", "content": "What is 17 times 5?"}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "\n\n  leading and trailing  \n"}],
    [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "Hé 你好"},
        {"role": "user", "content": "`x = 1`"},
    ],
]


def small_tokenizer():
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(resolve("smollm2-135m"))
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2-135m", marks=pytest.mark.slow)])
def tokenizer(request):
    return tiny_tokenizer() if request.param == "tiny" else small_tokenizer()


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_plain_conversations_are_the_templates(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert for_tokenizer(tokenizer).encode(messages, (), ()) == tokenizer.encode(text, add_special_tokens=False)


def test_special_tokens_in_contents_stay_text(tokenizer):
    renderer = for_tokenizer(tokenizer)
    specials = set(tokenizer.all_special_ids)
    plain = [i for i in renderer.encode([{"role": "user", "content": "x"}], (), ()) if i in specials]
    text = "".join(tokenizer.all_special_tokens)
    tool = ToolSpec("t", text, {"properties": {"a": {"type": "string"}}})
    messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    assert [i for i in renderer.encode(messages, [tool], ()) if i in specials] == plain


def test_history_extends_context_and_reply(tokenizer):
    renderer = for_tokenizer(tokenizer)
    user = {"role": "user", "content": "Q"}
    first = renderer.encode([user], (), ())
    # Ids that encoding the text anew would not give: single bytes or letters.
    sampled = [i for letter in "calculator" for i in renderer.text_ids(letter)]
    parsed = renderer.parse(sampled, "length")
    assert parsed.text == "calculator"
    second = renderer.encode([user, {"role": "assistant", "content": parsed.text, "reply": 0}, user], (), [sampled])
    assert second[: len(first) + len(sampled)] == first + sampled


def test_the_default_system_prompt_is_read_off_the_template():
    assert for_tokenizer(tiny_tokenizer()).default_system == DEFAULT_SYSTEM


def test_a_template_with_tools_describes_them_itself():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% if tools %}{{ '<|im_start|>system\n' + (messages[0].content + '|' if messages[0].role == 'system' else '') }}"  # noqa: E501
        "{{ tools[0].function.name + '!<|im_end|>\n' }}{% endif %}"
        "{% for m in messages if not (tools and m.role == 'system') %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    renderer = for_tokenizer(tokenizer)
    assert renderer.default_system is None
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    text = tokenizer.decode(renderer.encode(messages, [ToolSpec("calc", "Adds.")], ()))
    assert text.startswith("<|im_start|>system\nS|calc!<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n")


PUBLISHED = (
    "qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "llama3", "llama3_1",
    "llama3_2",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_are_reproduced(name):
    """The templates that trl ships, with a tokenizer of bytes and the families' markers."""
    trl = pytest.importorskip("trl")
    path = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"this trl does not ship {path.name}")
    tokenizer = tiny_tokenizer()
    words = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_tokens(words, special_tokens=True)
    tokenizer.bos_token = words[0]
    tokenizer.chat_template = path.read_text()
    renderer = for_tokenizer(tokenizer)  # compares itself with the template
    for messages in CONVERSATIONS:
        date = {"date_string": "26 Jul 2024"}
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **date)
        assert renderer.encode(messages, (), ()) == tokenizer.encode(text, add_special_tokens=False)
        assert for_tokenizer(tokenizer, "template").encode(messages, (), ()) == renderer.encode(messages, (), ())
