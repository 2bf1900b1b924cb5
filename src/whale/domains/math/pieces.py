"""The pieces of the catalogue: what each one changes, why it might help, and with what it does not go together.

Axes: ``form`` (what the policy is asked to write), ``system``, ``prompt`` (how the problem stands in the message),
``demos``, ``tool`` (how the tool is wrapped), ``code`` (how written code is normalised), ``parse``, ``retry``,
``calls`` (several calls per task) and ``stop``. Many pieces are expected to do nothing or to hurt under some policy:
finding out which is the search's work.
"""

from __future__ import annotations

from whale.domains.catalogue import Piece

AXES = ("form", "demos", "system", "prompt", "tool", "code", "parse", "retry", "calls", "stop")

CODE_FORMS = ("expression", "program")
"""The policy writes code and the harness hands it to the interpreter."""

BOX_FORMS = ("", "direct_box", "steps")
"""The policy writes the box itself; ``""`` is h0's own form, the only one with native tool calls."""


OWN_FORMS = ("expression", "program", "equation", "answer_line", "direct_box", "steps")
"""Every form but h0's: what demonstrations can show beyond it. A piece that requires one brings the first."""

_FORM = (
    Piece(
        "form",
        "expression",
        "If the policy only writes a Python expression and the harness has it run and boxed, fewer answers are wrong "
        "or unboxed than when it calculates and boxes by itself.",
        ("no_box", "unclosed_box", "wrong", "limit"),
        prior=4,
    ),
    Piece(
        "form",
        "program",
        "If the policy writes a short Python program that prints the answer, more answers are right than without code.",
        ("no_box", "unclosed_box", "wrong"),
        prior=2,
    ),
    Piece(
        "form",
        "direct_box",
        "If the instruction asks for nothing but the box, replies end before they stray and more of them hold a box.",
        ("no_box", "unclosed_box", "limit"),
    ),
    Piece(
        "form",
        "answer_line",
        "If the harness puts the box around the policy's bare answer, missing boxes vanish.",
        ("no_box", "unclosed_box"),
    ),
    Piece(
        "form",
        "equation",
        "If the policy copies the calculation before its result, the result is right more often.",
        ("no_box", "wrong"),
        prior=2,
    ),
    Piece(
        "form",
        "steps",
        "If the policy is asked to reason step by step, fewer answers are wrong.",
        ("wrong",),
        conflicts={"stop": ("one_line",)},
    ),
)

_DEMOS = (
    Piece(
        "demos",
        "turns",
        "If earlier turns of the chat show invented problems answered in the wanted form, replies keep to that form.",
        ("no_box", "unclosed_box", "not_a_number", "code_failed", "wrong", "limit"),
        requires={"form": OWN_FORMS},
        prior=4,
    ),
    Piece(
        "demos",
        "block",
        "If the message opens with a list of invented problems and answers, replies keep to the wanted form.",
        ("no_box", "unclosed_box", "not_a_number", "code_failed", "wrong", "limit"),
        requires={"form": OWN_FORMS},
        prior=2,
    ),
    Piece(
        "demos",
        "single",
        "If one earlier turn shows the wanted form, replies keep to it at a fraction of the context of many.",
        ("no_box", "unclosed_box", "not_a_number"),
        requires={"form": OWN_FORMS},
    ),
)

_SYSTEM = (
    Piece(
        "system",
        "translator",
        "If the system prompt calls the policy a translator of problems into Python, it stops explaining.",
        ("not_a_number", "wrong"),
        requires={"form": CODE_FORMS},
    ),
    Piece(
        "system",
        "careful",
        "If the system prompt asks for care, fewer answers are wrong.",
        ("wrong",),
    ),
    Piece(
        "system",
        "terse",
        "If the system prompt asks for brevity, fewer replies are cut before the answer.",
        ("no_box", "limit", "unclosed_box"),
    ),
)

_PROMPT = (
    Piece(
        "prompt",
        "labels",
        "If problem and reply are labelled, the reply starts with what the label names.",
        ("no_box", "not_a_number"),
        conflicts={"demos": ("block",)},  # which labels by itself
    ),
    Piece(
        "prompt",
        "instruction_first",
        "If the instruction stands before the problem, the problem is what the reply starts from and is copied better.",
        ("wrong", "not_a_number"),
        requires={"demos": ("",)},  # with demonstrations it stands first anyway
    ),
    Piece(
        "prompt",
        "repeat",
        "If the problem is said twice, its numbers are copied with fewer mistakes.",
        ("wrong",),
    ),
)

_TOOL = (
    Piece(
        "tool",
        "math_names",
        "If the functions of Python's math module are known by name, code that calls them runs.",
        ("code_failed",),
        requires={"form": ("expression",)},
        prior=3,
    ),
    Piece(
        "tool",
        "say_result",
        "If a tool's result comes back with a reminder of the box, the second turn ends in a box.",
        ("no_box",),
        requires={"form": ("",)},
    ),
)

_CODE = (
    Piece(
        "code",
        "normalise",
        "If signs of ordinary notation (x, ^, a trailing =) are turned into Python's, more of the written code runs.",
        ("code_failed",),
        requires={"form": ("expression",)},
    ),
)

_PARSE = (
    Piece(
        "parse",
        "first_line",
        "If only the first line of a reply is read, talk after the answer does no harm.",
        ("not_a_number", "code_failed", "wrong"),
        requires={"form": ("expression", "answer_line", "equation")},
    ),
    Piece(
        "parse",
        "last_number",
        "If the last number of a reply is taken as its answer, answers given without a box count.",
        ("no_box", "unclosed_box", "not_a_number"),
        conflicts={"form": CODE_FORMS},
    ),
    Piece(
        "parse",
        "after_label",
        "If what follows the last colon is read, replies that introduce their answer are understood.",
        ("not_a_number", "code_failed"),
        requires={"form": ("expression", "answer_line")},
    ),
)

_RETRY = (
    Piece(
        "retry",
        "show_error",
        "If the policy sees why its code failed and writes again, more of it runs.",
        ("code_failed",),
        requires={"form": CODE_FORMS},
        defaults={"times": 1},
    ),
    Piece(
        "retry",
        "ask_for_box",
        "If a reply without a box is followed by a plain request for it, the next one has it.",
        ("no_box", "unclosed_box"),
        requires={"form": BOX_FORMS},
        conflicts={"parse": ("last_number",)},
        defaults={"times": 1},
    ),
    Piece(
        "retry",
        "again",
        "If an unusable reply is thrown away and the same question asked again, more tasks get a usable one.",
        ("not_a_number", "code_failed", "no_box", "unclosed_box"),
        defaults={"times": 1},
    ),
)

_CALLS = (
    Piece(
        "calls",
        "vote",
        "If the answer given most often in three independent attempts is returned, chance mistakes cancel out.",
        ("wrong", "not_a_number"),
        defaults={"attempts": 3},
    ),
    Piece(
        "calls",
        "confirm",
        "If the policy is asked whether its answer is right and may try again after a no, fewer wrong ones remain.",
        ("wrong",),
    ),
    Piece(
        "calls",
        "plan",
        "If the policy first says in a sentence how to solve the problem, what it then writes is right more often.",
        ("wrong",),
    ),
)

_STOP = (
    Piece(
        "stop",
        "one_line",
        "If a reply ends with its first line, no budget and no reading is lost on what comes after.",
        ("limit", "not_a_number", "code_failed"),
        requires={"form": ("expression", "direct_box", "answer_line", "equation")},
    ),
    Piece(
        "stop",
        "short",
        "If a reply may only have few tokens, the policy's straying costs little and does no harm.",
        ("limit",),
        defaults={"max_tokens": 24},
    ),
    Piece(
        "stop",
        "more_turns",
        "If the policy may use the tool more than once, it can mend its own mistakes.",
        ("no_box", "not_a_number"),
        requires={"form": ("",)},
        defaults={"turns": 4},
    ),
)

PIECES: tuple[Piece, ...] = (*_FORM, *_DEMOS, *_SYSTEM, *_PROMPT, *_TOOL, *_CODE, *_PARSE, *_RETRY, *_CALLS, *_STOP)
