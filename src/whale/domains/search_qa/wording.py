"""The texts of rendered harnesses: instructions per form, system prompts and invented demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

INSTRUCTIONS = {
    "": "Put your final answer between <answer> and </answer>.",
    "line": "Reply with the answer alone, in as few words as possible.",
    "label": "Reply with one line of the form: Answer: the answer in as few words as possible",
}
"""What the policy is asked to write, by form; ``""`` is h0's own."""

UNKNOWN = " If the passages do not say it, reply unknown."
"""Added where a reply of ``unknown`` leads to another search."""

SYSTEM = {
    "": "You answer questions with the help of a search tool.",
    "reader": "You read passages and copy the answer to a question from them. You never explain.",
    "terse": "You answer in as few words as possible.",
}

QUERY = "Write a search query of a few words that finds the answer. Write the query alone."
PARTS = "Write up to three short search queries, one per line, that together find the answer."
NOTE = "Write one line that notes what these passages say about the question."
NEXT_QUERY = "Write a search query of a few words for what is still missing. Write the query alone."
PICK = "Which of these passages is most likely to hold the answer? Reply with its number alone."
TAG_NUDGE = "Write the final answer alone, between <answer> and </answer>."


class Demo(NamedTuple):
    """An invented question with a query, a passage and the answer that the passage holds."""

    question: str
    query: str
    title: str
    text: str
    answer: str

    @property
    def passage(self) -> str:
        """As the search tool shows a single passage."""
        return f"Title: {self.title}\n{self.text}"


# Invented people, places and works that show a form. A test holds them against the public question sets.
DEMOS = (
    Demo(
        "Where was Orla Vennick born?",
        "Orla Vennick birthplace",
        "Orla Vennick",
        "Orla Vennick (12 May 1911 - 3 March 1984) was a glass artist. She was born in Halderby and later taught in "
        "Mirrin.",
        "Halderby",
    ),
    Demo(
        "Who directed the film The Tin Orchard?",
        "The Tin Orchard film director",
        "The Tin Orchard",
        "The Tin Orchard is a 1957 comedy film directed by Pellam Strake and starring Ada Quillon.",
        "Pellam Strake",
    ),
    Demo(
        "What is Brannoc Teale's occupation?",
        "Brannoc Teale occupation",
        "Brannoc Teale",
        "Brannoc Teale (born 1948) is a retired lighthouse keeper who served at Fell Point for thirty years.",
        "lighthouse keeper",
    ),
    Demo(
        "In what year did the Corvane Bridge open?",
        "Corvane Bridge opening year",
        "Corvane Bridge",
        "The Corvane Bridge crosses the Isk at Lower Tarn. It was planned in 1864 and opened in 1871.",
        "1871",
    ),
    Demo(
        "In which country is the village of Upper Sarnholt?",
        "Upper Sarnholt village country",
        "Upper Sarnholt",
        "Upper Sarnholt is a village of 212 people in the hills of northern Vestmar, near the town of Dray.",
        "Vestmar",
    ),
)

_REPLIES: dict[str, Callable[[str], str]] = {
    "": lambda answer: f"<answer>{answer}</answer>",
    "line": lambda answer: answer,
    "label": lambda answer: f"Answer: {answer}",
}


def demonstrations(form: str, demos: Sequence[Demo], labelled: bool) -> list[tuple[str, str, str, str]]:
    """Question, query, passage and the reply that ``form`` wants. labelled: the prompt itself says ``Answer:``."""
    reply = _REPLIES["line" if labelled and form == "label" else form]
    return [(demo.question, demo.query, demo.passage, reply(demo.answer)) for demo in demos]
