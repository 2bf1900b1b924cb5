"""The pieces of the catalogue: what each one changes, why it might help, and with what it does not go together.

Axes: ``flow`` (who searches with what, and when the policy reads), ``form`` (what the policy is asked to write),
``demos``, ``prompt`` (order of question and passages), ``system``, ``depth`` and ``length`` (of what a search returns),
``observe`` (how passages are shown), ``memory``, ``parse``, ``retry``, ``calls`` (several calls per task) and ``stop``.
Many pieces are expected to do nothing or to hurt under some policy: finding out which is the search's work.
"""

from __future__ import annotations

from whale.domains.catalogue import Piece

AXES = (
    "flow", "form", "demos", "prompt", "system", "depth", "length", "observe", "memory", "parse", "retry", "calls",
    "stop",
)  # fmt: skip

READING = ("question_first", "query_line")
"""The flows in which the harness fetches passages and the policy reads them in a call of its own."""

WRAPPED = ("line", "label")
"""The forms in which the policy writes a bare answer and the harness puts the tags around it."""

SEVERAL = ("top_3", "top_2", "top_5")

_FLOW = (
    Piece(
        "flow",
        "question_first",
        "If the harness searches with the question itself and the policy only reads and answers, more answers are "
        "right than when the policy must call the tool by itself.",
        ("no_answer_tag", "wrong", "limit"),
        prior=4,
    ),
    Piece(
        "flow",
        "query_line",
        "If the policy writes a bare query on one line and the harness has it searched, more tasks get a useful "
        "passage than with tool calls.",
        ("no_answer_tag", "wrong"),
        prior=2,
    ),
)

_FORM = (
    Piece(
        "form",
        "line",
        "If the policy writes the bare answer and the harness puts the tags around it, missing tags vanish.",
        ("no_answer_tag", "empty_answer", "too_long"),
        prior=4,
    ),
    Piece(
        "form",
        "label",
        "If the policy writes its answer behind the label Answer: and the harness wraps it, missing tags vanish and "
        "talk before the label does no harm.",
        ("no_answer_tag", "too_long"),
        prior=2,
    ),
)

_DEMOS = (
    Piece(
        "demos",
        "turns",
        "If earlier turns of the chat show invented questions with passages, answered in the wanted form, replies keep "
        "to that form and to the passage.",
        ("no_answer_tag", "wrong", "too_long", "partly_right"),
        requires={"flow": READING},
        prior=4,
    ),
    Piece(
        "demos",
        "block",
        "If the message opens with invented questions, passages and answers, replies keep to the wanted form.",
        ("no_answer_tag", "wrong", "too_long", "partly_right"),
        requires={"flow": READING},
        prior=2,
    ),
    Piece(
        "demos",
        "single",
        "If one earlier turn shows the wanted form, replies keep to it at a fraction of the context of many.",
        ("no_answer_tag", "too_long", "limit"),
        requires={"flow": READING},
    ),
)

_PROMPT = (
    Piece(
        "prompt",
        "passage_first",
        "If the passages stand before the question, the question is the last thing read and is answered more often.",
        ("wrong",),
        requires={"flow": READING},
        prior=2,
    ),
    Piece(
        "prompt",
        "repeat_question",
        "If the question stands before and after the passages, they are read for it and fewer answers are wrong.",
        ("wrong",),
        requires={"flow": READING},
    ),
    Piece(
        "prompt",
        "instruction_first",
        "If the instruction stands before everything else, the reply starts from the question and not from it.",
        ("wrong", "too_long"),
        requires={"demos": ("",)},  # with demonstrations it stands first anyway
    ),
)

_SYSTEM = (
    Piece(
        "system",
        "reader",
        "If the system prompt calls the policy a reader that copies answers, it stops explaining and inventing.",
        ("wrong", "too_long", "partly_right"),
        requires={"flow": READING},
    ),
    Piece(
        "system",
        "terse",
        "If the system prompt asks for brevity, fewer answers are too long to match.",
        ("wrong", "too_long", "limit", "partly_right"),
    ),
    Piece(
        "system",
        "none",
        "If there is no system prompt, the question weighs more in what the policy writes.",
        ("wrong", "no_answer_tag"),
    ),
)

_DEPTH = tuple(
    Piece(
        "depth",
        f"top_{count}",
        f"If a search returns {count} passages, the one with the answer is among them more often, which outweighs "
        "what the others distract.",
        ("wrong",),
        defaults={"top_k": count},
        prior=2 if count == 3 else 1,
    )
    for count in (3, 2, 5)
)

_LENGTH = (
    Piece(
        "length",
        "short",
        "If passages are cut after their first sentences, where an article says what its subject is, less distracts.",
        ("wrong", "limit"),
        defaults={"max_tokens": 64},
    ),
    Piece(
        "length",
        "long",
        "If passages are shown at twice the length, answers from their later sentences are found.",
        ("wrong",),
        defaults={"max_tokens": 400},
    ),
)

_OBSERVE = (
    Piece(
        "observe",
        "titles_first",
        "If the policy sees the titles, names the one it wants to read and is shown that passage alone, it reads "
        "deeper results without being distracted by all of them.",
        ("wrong",),
        requires={"flow": READING, "depth": SEVERAL},
    ),
    Piece(
        "observe",
        "no_titles",
        "If passages are shown without their titles, titles are no longer copied as answers.",
        ("wrong",),
        requires={"flow": READING},
    ),
    Piece(
        "observe",
        "once",
        "If a passage that several searches found is shown once, the context holds more that is new.",
        ("wrong", "limit"),
        requires={"flow": READING, "calls": ("decompose",)},
    ),
    Piece(
        "observe",
        "reminder",
        "If a passage comes back with a reminder of the answer's form, the next turn ends in an answer.",
        ("no_answer_tag",),
        requires={"flow": ("",)},
    ),
)

_MEMORY = (
    Piece(
        "memory",
        "notes",
        "If the policy notes in a line what it has read and searches once more for what is missing, questions over two "
        "passages are answered more often.",
        ("wrong",),
        requires={"flow": READING},
    ),
)

_PARSE = (
    Piece(
        "parse",
        "first_line",
        "If only the first line of a reply is read, talk after the answer does no harm.",
        ("wrong", "too_long", "partly_right"),
        requires={"form": WRAPPED},
    ),
    Piece(
        "parse",
        "last_line",
        "If only the last line of a reply is read, talk before the answer does no harm.",
        ("wrong", "too_long", "partly_right"),
        requires={"form": WRAPPED},
        conflicts={"stop": ("one_line",)},
    ),
    Piece(
        "parse",
        "first_clause",
        "If a reply is read up to the end of its first clause, explanations after a comma or a period do no harm.",
        ("wrong", "too_long", "partly_right"),
        requires={"form": WRAPPED},
    ),
    Piece(
        "parse",
        "open_tag",
        "If an answer whose closing tag is missing is read up to the end of its line, unclosed answers count.",
        ("no_answer_tag",),
        requires={"form": ("",)},
    ),
)

_RETRY = (
    Piece(
        "retry",
        "ask_for_tag",
        "If a reply without an answer in tags is followed by a plain request for it, the next one has it.",
        ("no_answer_tag", "empty_answer"),
        requires={"form": ("",)},
        defaults={"times": 1},
    ),
    Piece(
        "retry",
        "again",
        "If a reply without an answer is thrown away and the same question asked again, more tasks get an answer.",
        ("no_answer_tag", "empty_answer", "no_answer"),
        defaults={"times": 1},
    ),
    Piece(
        "retry",
        "second_search",
        "If the policy may reply unknown and then writes a query for a second search, fewer answers are guessed from "
        "passages that do not hold them.",
        ("wrong",),
        requires={"flow": READING},
    ),
)

_CALLS = (
    Piece(
        "calls",
        "vote",
        "If the answer given most often in three independent attempts is returned, chance mistakes cancel out.",
        ("wrong", "no_answer_tag", "partly_right"),
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
        "decompose",
        "If the policy writes up to three queries for the parts of a question and reads what all of them find, "
        "questions over several passages are answered more often.",
        ("wrong",),
        requires={"flow": READING},
    ),
)

_STOP = (
    Piece(
        "stop",
        "one_line",
        "If a reply ends with its first line, no budget and no reading is lost on what comes after.",
        ("limit", "too_long", "wrong"),
        requires={"flow": READING, "form": WRAPPED},
        prior=2,
    ),
    Piece(
        "stop",
        "short",
        "If an answer may only have few tokens, the policy's straying costs little and does no harm.",
        ("limit", "too_long"),
        requires={"flow": READING},
        defaults={"max_tokens_of_answer": 16},
    ),
    Piece(
        "stop",
        "more_turns",
        "If the policy may search more than once, it can mend a query that found nothing.",
        ("wrong", "no_answer_tag"),
        requires={"flow": ("",)},
        defaults={"turns": 4},
    ),
)

PIECES: tuple[Piece, ...] = (
    *_FLOW, *_FORM, *_DEMOS, *_PROMPT, *_SYSTEM, *_DEPTH, *_LENGTH, *_OBSERVE, *_MEMORY, *_PARSE, *_RETRY, *_CALLS,
    *_STOP,
)  # fmt: skip
