"""Tool calls as small models write them: every block gives a call or an error, never an exception, never silence."""

import pytest

from whale.renderers.calls import (
    by_schema,
    describe_tools,
    find_calls,
    find_json_calls,
    write_call,
    write_message_calls,
)
from whale.types import ToolSpec

SEARCH = '{"name":"search","arguments":{"query_list":["a"]}}'


def block(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def test_text_without_a_block_is_left_alone():
    assert find_calls("  a < b \n") == ("  a < b \n", ())


def test_two_objects_in_one_block_are_two_calls():
    text, calls = find_calls(block(f"{SEARCH}\n{SEARCH}"))
    assert text == ""
    assert [(c.name, dict(c.arguments), c.error) for c in calls] == [("search", {"query_list": ["a"]}, "")] * 2


def test_a_lost_brace_is_a_call_with_an_error():
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


FUNCTION = (
    "<function=run>\n<parameter=code>\nprint(1)\n\nprint(2)\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>"
)


def test_xml_values_are_text_with_their_inner_newlines():
    _, (call,) = find_calls(block(FUNCTION))
    assert dict(call.arguments) == {"code": "print(1)\n\nprint(2)", "n": "3"}


def test_two_functions_in_one_block_are_two_calls():
    text, calls = find_calls("so: " + block(f"{FUNCTION}\n{FUNCTION}"))
    assert text == "so:"
    assert [c.name for c in calls] == ["run", "run"]


@pytest.mark.parametrize("lost", ["</parameter>", "</function>", "</tool_call>", "</function>\n</tool_call>"])
def test_a_lost_closing_tag_loses_no_call(lost):
    _, (call,) = find_calls("".join(block(FUNCTION).rsplit(lost, 1)))
    assert (call.name, call.error) == ("run", "")
    assert call.arguments["n"].strip() == "3"


@pytest.mark.parametrize("body", ["<function=>\n</function>", "<function", "<parameter=a>\n1\n</parameter>"])
def test_xml_that_names_no_function_is_an_error(body):
    _, (call,) = find_calls(block(body))
    assert call.error
    assert (call.name, dict(call.arguments)) == ("", {})


BARE = '{"name": "search", "parameters": {"q": "a"}}'


@pytest.mark.parametrize(
    ("text", "visible", "names"),
    [
        (BARE, "", ["search"]),
        (f"\n{BARE}; {BARE}", "", ["search", "search"]),
        (f"[{BARE}, {BARE}]", "", ["search", "search"]),
        (f"Let me see. <|python_tag|>{BARE}", "Let me see.", ["search"]),
        (block(SEARCH), "", ["search"]),
    ],
)
def test_bare_json_is_a_call_for_models_that_write_it(text, visible, names):
    found, calls = find_json_calls(text)
    assert found == visible
    assert [(c.name, c.error) for c in calls] == [(name, "") for name in names]


@pytest.mark.parametrize("text", [BARE[:-1], "<|python_tag|>search.call(1)", "<|python_tag|>", f"{BARE} Done."])
def test_broken_bare_json_is_an_error(text):
    _, calls = find_json_calls(text)
    assert calls[-1].error


@pytest.mark.parametrize("text", ['{"answer": 3}', f"I would write {BARE}", '{"name": "Ann"}', "", "{"])
def test_other_json_and_json_inside_text_is_no_call(text):
    assert find_json_calls(text) == (text, ())


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


SCHEMA = {"properties": {
    "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"}, "rows": {"type": "array"},
    "how": {"type": "object"}, "text": {"type": "string"}, "any": {},
}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("n", "3", 3), ("n", " -3\n", -3), ("n", "3.5", "3.5"), ("n", "true", "true"), ("n", "three", "three"),
        ("x", "3.5", 3.5), ("x", "3", 3), ("on", "true", True), ("on", "False", False), ("on", "1", "1"),
        ("rows", "[1, 2]", [1, 2]), ("rows", "1, 2", "1, 2"), ("how", '{"a": 1}', {"a": 1}), ("text", "3", "3"),
        ("any", "3", "3"), ("unknown", "3", "3"), ("n", 4, 4), ("n", None, None),
    ],
)  # fmt: skip
def test_strings_are_read_as_what_the_schema_asks_for(name, value, read):
    assert by_schema({name: value}, SCHEMA) == {name: read}


def test_a_tool_without_a_schema_keeps_its_arguments():
    assert by_schema({"n": "3"}, {}) == {"n": "3"}
