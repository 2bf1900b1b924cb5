"""The public question sets of the field, for ``whale data prepare``: where they lie and what becomes of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whale.domains.data.source import HubFile, Source
from whale.domains.search_qa.questions import task_of
from whale.types import Split, Task

_HUB = "RUC-NLPIR/FlashRAG_datasets"


def _source(name: str, splits: tuple[Split, ...], config: str, split: str, rows: int) -> Source:
    return Source(name, splits, HubFile(_HUB, config, split), rows)


SOURCES: tuple[Source, ...] = (
    _source("nq_train", ("weights", "search"), "nq", "train", 79_168),
    _source("hotpotqa_train", ("weights", "search"), "hotpotqa", "train", 90_447),
    # What this collection calls the test part of NQ is the development set of NQ-open, the field's usual test.
    _source("nq_open_dev", ("test",), "nq", "test", 3_610),
    _source("triviaqa", ("test",), "triviaqa", "test", 11_313),
    _source("popqa", ("test",), "popqa", "test", 14_267),
    _source("hotpotqa_dev", ("test",), "hotpotqa", "dev", 7_405),
    _source("2wikimultihopqa", ("test",), "2wikimultihopqa", "dev", 12_576),
    _source("musique", ("test",), "musique", "dev", 2_417),
    _source("bamboogle", ("test",), "bamboogle", "test", 125),
)

_FAMILIES = {"nq_train": "nq", "nq_open_dev": "nq", "hotpotqa_train": "hotpotqa", "hotpotqa_dev": "hotpotqa"}


class SearchQaPreparer:
    """Implements ``whale.domains.data.source.Preparer``: rows with ``question`` and ``golden_answers`` (the hub's
    columns) or ``answers`` (local files); every alias is kept."""

    domain = "search_qa"
    version = "search_qa-1"
    sources: Sequence[Source] = SOURCES
    # The paper's weight set: 74 steps of 256 tasks an epoch, drawn from both training sets.
    sizes: Mapping[Split, int | None] = {"weights": 18_946, "search": 256, "test": None, "unseen": 0}

    def task(self, source: Source, number: int, row: Mapping[str, Any]) -> Task:
        """The task of row ``number`` of ``source``. Raises RowError for a missing or blank question or alias."""
        return task_of(row, f"{source.name}_{row.get('id', number)}", _FAMILIES.get(source.name, source.name))
