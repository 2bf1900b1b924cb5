"""Passages are cut by the policy's tokens: never longer, never inside a character, always a beginning."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from whale.domains.search_qa.retrieval.cut import WORDS_PER_TOKEN, Cutter
from whale.errors import ConfigError

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "The Port of Antwerp-Bruges handled 287,000,000 tonnes in 2022; it is Europe's second-largest.",
    "Zürich, Škoda, naïve façade: ünïcödé wörds.",
    "鯨は海に住む哺乳類です。" * 4,
    "whales \U0001f40b\U0001f433 swim " * 5,
    "   leading and\n\n\ttrailing space   ",
    "antidisestablishmentarianism",
    "",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE trained on English only, so that other scripts are split into single bytes. A limit of eight
    tokens and padding are stored in the file, as encoders have them."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([TEXTS[0], "the second largest port in Europe handled tonnes"] * 20, trainer)
    trained.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    trained.enable_truncation(8)
    trained.enable_padding(pad_id=1, pad_token="<pad>")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_a_cut_is_a_beginning_of_at_most_so_many_tokens(tokenizer: Path, text: str) -> None:
    cutter = Cutter(tokenizer)
    whole = cutter.count(text)
    for count in [*range(1, 40), 200, 5000]:
        part = cutter.cut(text, count)
        assert text.startswith(part)
        assert cutter.count(part) <= count
        assert (part == text) == (whole <= count)
    assert cutter.cut(text, None) == text


def test_a_cut_takes_what_fits(tokenizer: Path) -> None:
    cutter = Cutter(tokenizer)
    text = TEXTS[0]
    for count in range(2, cutter.count(text)):
        # At a token's end: the next longer cut is at most one token more, so no cut wastes half a passage.
        assert cutter.count(cutter.cut(text, count)) == count


def test_random_texts(tokenizer: Path) -> None:
    cutter = Cutter(tokenizer)
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choice("ab eE.,'-09\né鯨\U0001f40b") for _ in range(draw.randrange(60)))
        count = draw.randrange(1, 30)
        part = cutter.cut(text, count)
        assert text.startswith(part)
        assert cutter.count(part) <= count


def test_a_folder_serves_as_well_and_special_tokens_do_not_count(tokenizer: Path) -> None:
    assert Cutter(tokenizer.parent).cut(TEXTS[0], 5) == Cutter(tokenizer).cut(TEXTS[0], 5)
    assert Cutter(tokenizer).count("") == 0


def test_without_a_tokenizer_words_are_counted() -> None:
    cutter = Cutter(None)
    text = " one two  three\nfour five "
    assert int(5 * WORDS_PER_TOKEN) == 3
    assert cutter.cut(text, 5) == " one two  three"
    assert cutter.cut(text, 1) == " one"
    assert cutter.cut(text, 100) == text
    assert cutter.cut("", 5) == ""
    assert cutter.count("a b c") == round(3 / WORDS_PER_TOKEN)


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*tokenizer\.json"):
        Cutter(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not a tokenizer\.json"):
        Cutter(tmp_path)
