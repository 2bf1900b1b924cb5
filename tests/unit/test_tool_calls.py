"""Tool calls as small models write them: every block gives a call or an error, never an exception, never silence."""

import pytest

from whale.renderers.calls import describe_tools, find_calls, write_call, write_message_calls
from whale.types import ToolSpec

SEARCH = '{"name":"search","arguments":{"query_list":["a"]}}'


def block(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def test_text_without_a_block_is_left_alone():
    assert find_calls("  a < b \n") == ("  a < b \n", ())


def test_two_objects_in_one_block_are_two_calls():  # F11 (a)
    text, calls = find_calls(block(f"{SEARCH}\n{SEARCH}"))
    assert text == ""
    assert [(c.name, dict(c.arguments), c.error) for c in calls] == [("search", {"query_list": ["a"]}, "")] * 2


def test_a_lost_brace_is_a_call_with_an_error():  # F11 (b)
    text, (call,) = find_calls("let me see " + block(SEARCH[:-1]))
    assert text == "let me see"
    assert call.error
    assert call.name == ""
    assert dict(call.arguments) == {}


@pytest.mark.parametrize(
    "body",
    ["", "nothing", "[1, 2]", '{"arguments": {}}', '{"name": 3}', '{"name": "f", "arguments": [1]}', "[" * 99999],
)
def test_what_is_not_a_call_is_an_error(body):
    _, calls = find_calls(block(body))
    assert calls
    assert all(call.error for call in calls)


def test_a_block_that_is_never_closed_counts():
    _, (call,) = find_calls(f"<tool_call>{SEARCH}")
    assert (call.name, call.error) == ("search", "")
    _, (call,) = find_calls('<tool_call>{"name": "sea')
    assert call.error


def test_good_calls_before_a_broken_one_are_kept():
    _, calls = find_calls(block(SEARCH + "\n{oops"))
    assert [bool(c.error) for c in calls] == [False, True]


def test_text_around_blocks_is_kept_and_blocks_are_not():
    text, calls = find_calls(f"before {block(SEARCH)} between {block(SEARCH)} after")
    assert text == "before  between  after"
    assert len(calls) == 2


def test_arguments_may_be_json_in_a_string():
    _, (call,) = find_calls(block('{"name": "f", "arguments": "{\\"x\\": 1}"}'))
    assert dict(call.arguments) == {"x": 1}


def test_the_xml_form_is_read():
    _, (call,) = find_calls(block("<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n</function>"))
    assert (call.name, dict(call.arguments)) == ("run", {"code": "print(1)"})


def test_written_calls_are_read_back():
    arguments = {"text": 'a "quoted"\nline', "n": 3}
    _, (call,) = find_calls(write_call("f", arguments))
    assert (call.name, dict(call.arguments)) == ("f", arguments)
    message = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"n": 3}'}}]}
    _, (call,) = find_calls(write_message_calls(message))
    assert dict(call.arguments) == {"n": 3}


def test_tools_are_described_in_few_words():
    tool = ToolSpec("calc", "Evaluates.", {"type": "object", "properties": {"expression": {"type": "string"}}})
    text = describe_tools([tool])
    assert "- calc(expression: string): Evaluates." in text
    _, (call,) = find_calls(text)
    assert (call.name, dict(call.arguments)) == ("calc", {"expression": "..."})
