"""Tokenizers with merges and chat templates in the formats of real families, built in code."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

CHATML_WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_WORDS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
PLAIN_WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own that are not special, as in Qwen's tokenizers."""

# Tokens that span a header and a content, or several newlines, show pieces that were encoded apart.
CORPUS = ["user\n\n\nuser\nassistant\n\nassistant\nsystem\n\n", "\n\nthe sum of 3 + 4 is \n\n  7 \n", '{"name": "f"}\n']

JSON_CALLS = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- 'Functions:\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\nCall one as a JSON object inside <tool_call></tool_call>.<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if m.reasoning_content and loop.index0 > last.user %}
            {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {%- if m.content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

XML_CALLS = """
{%- if tools %}
    {{- '<|im_start|>system\nFunctions:\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\nCall one as XML.' }}
    {%- if messages[0].role == 'system' %}{{- '\n\n' + messages[0].content | trim }}{%- endif %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content | trim + '<|im_end|>\n' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- if last.user < 0 %}{{- raise_exception('no user message') }}{%- endif %}
{%- for m in messages %}
    {%- set content = m.content | trim %}
    {%- if m.role == 'system' and not loop.first %}
        {{- raise_exception('the system message comes first') }}
    {%- elif m.role == 'user' %}
        {{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > last.user %}
            {{- '<think>\n' + (m.reasoning_content or '') | trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in m.tool_calls or [] %}
            {%- if loop.first %}{{- '\n\n' if content else '' }}{%- else %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for name, value in call.function.arguments | items %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value | string if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking %}
        {{- '<think>\n' }}
    {%- else %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA_CALLS = """
{{- bos_token }}
{%- set date = date_string if date_string is defined else '26 Jul 2024' %}
{%- set tools_first = tools_in_user_message if tools_in_user_message is defined else true %}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' + date + '\n\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}
{{- '<|eot_id|>' }}
{%- for m in rest %}
    {%- if m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{- m.content | tojson }}{{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + m.tool_calls[0].function.name }}
        {{- '", "parameters": ' }}{{- m.tool_calls[0].function.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
        {%- if tools and loop.first and tools_first %}
            {{- 'Functions, to be called as JSON:\n\n' }}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
        {%- endif %}
        {{- m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

LLAMA_PLAIN = """
{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

CHATML_PLAIN = """
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nBe tiny.<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

FOREIGN = """
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- raise_exception('no system messages') }}{%- endif %}
    {{- ('[INST]' + m.content + '[/INST]') if m.role == 'user' else (m.content + eos_token) }}
{%- endfor %}"""

TEMPLATES = {
    "json": (JSON_CALLS, CHATML_WORDS),
    "xml": (XML_CALLS, CHATML_WORDS),
    "chatml": (CHATML_PLAIN, CHATML_WORDS),
    "llama": (LLAMA_CALLS, LLAMA_WORDS),
    "llama-plain": (LLAMA_PLAIN, LLAMA_WORDS),
    "foreign": (FOREIGN, ("<s>", "</s>")),
}


def build(kind):
    """A byte-level BPE tokenizer for one of ``TEMPLATES``; the markers of Llama have no name of their own."""
    from transformers import PreTrainedTokenizerFast

    template, words = TEMPLATES[kind]
    core = Tokenizer(BPE())
    # No splitting by a pattern: tokens may join letters and newlines.
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=list(words), show_progress=False)
    core.train_from_iterator(CORPUS * 3, trainer)
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    core.add_tokens([AddedToken(word, special=False, normalized=False) for word in PLAIN_WORDS])
    end = "<|eot_id|>" if "<|eot_id|>" in words else words[-1]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=words[0], eos_token=end, pad_token=end)
    tokenizer.chat_template = template
    return tokenizer
