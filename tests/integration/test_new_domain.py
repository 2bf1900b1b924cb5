"""``whale domain new``: the package it writes is checked, tested and run as a user would."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from whale.domains.new import new_domain
from whale.errors import ConfigError, DomainError
from whale.testing.catalogues import unused_names

PROGRAM = "import typer; from whale import cli, cli_data; cli.app.add_typer(cli_data.domain_app, name='d'); cli.main()"
FAKE = ("engine.kind=fake", "trainer.kind=fake", "harness.isolation=contained", "store.min_free_gb=0")


def run(folder: Path, *line: object, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *map(str, line)], capture_output=True, text=True, timeout=200, cwd=folder, env=environment
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def whale(folder: Path, *arguments: object, code: int = 0) -> str:
    text = run(folder, "-c", PROGRAM, *arguments, code=code)
    assert "Traceback" not in text, text
    return text


def table(path: Path, count: int = 20) -> Path:
    rows = [{"Frage": f"Was ist {i} mal zwei?", "Antwort": [2 * i, f"{2 * i}.0"], "x": 1} for i in range(count)]
    rows[3]["Antwort"] = ""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_the_example_is_checked_tested_and_run(tmp_path: Path) -> None:
    text = whale(tmp_path, "d", "new", "plurals")
    first, second = [line.strip() for line in text.splitlines() if line.startswith("  whale ")]
    assert (first, second) == ("whale domain check plurals.domain:PluralsDomain", "whale run plurals/recipe.toml")
    checked = whale(tmp_path, "d", "check", "plurals.domain:PluralsDomain")
    assert "gold: 40 judged, 0 do not score 1" in checked
    assert "junk: 240 judged, 0 do not score 0" in checked
    assert "3 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "plurals")
    name = "plurals.domain:PluralsDomain"
    assert "ok" in whale(
        tmp_path, "harness", "validate", "plurals/seed_harness.py", "-d", name, "--isolation", "contained"
    )
    assert "test mean@4" in whale(tmp_path, "run", "plurals/recipe.toml", *FAKE)
    assert (tmp_path / "runs" / "plurals" / "state.json").exists()


@pytest.mark.slow
def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table(tmp_path / "fragen.jsonl")
    text = whale(
        tmp_path, "d", "new", "mal_zwei", "--csv", "fragen.jsonl", "--question", "Frage", "--answer", "Antwort"
    )
    assert "19 questions (weights 11, search 4, test 4)" in text
    assert "1 rows without a readable question or answer were left out (rows 4)" in text
    name = "mal_zwei.domain:MalZweiDomain"
    checked = whale(tmp_path, "d", "check", name, "--option", "seed=3", "--limit", 4)
    assert "gold: 12 judged, 0 do not score 1" in checked
    recipe = tomllib.loads((tmp_path / "mal_zwei" / "recipe.toml").read_text())
    assert (recipe["weights"]["tasks_per_step"], recipe["search"]["tasks"], recipe["eval"]["tasks"]) == (11, 4, 4)
    assert recipe["domain"]["name"] == name
    assert "no option 'sed': did you mean 'seed'" in whale(tmp_path, "d", "check", name, "--option", "sed=3", code=2)


@pytest.mark.slow
def test_the_check_finds_a_verifier_that_is_too_kind(tmp_path: Path) -> None:
    whale(tmp_path, "d", "new", "plurals")
    domain = tmp_path / "plurals" / "domain.py"
    source = domain.read_text()
    assert "if said in known:" in source
    domain.write_text(source.replace("if said in known:", "if any(text in said for text in known):"))
    text = whale(tmp_path, "d", "check", "plurals.domain:PluralsDomain", "--out", "faults.jsonl", code=1)
    assert "FAILED" in text
    faults = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert {fault["kind"] for fault in faults} == {"junk"}
    assert len(faults) >= 80
    assert "more of this kind" in text
    assert "gold: 80 judged, 0 do not score 1" in whale(tmp_path, "d", "check", "toy")


def test_the_files_are_python_and_hold_nothing_unused(tmp_path: Path) -> None:
    new_domain("plurals", out=tmp_path / "plurals")
    names = {path.name for path in (tmp_path / "plurals").iterdir()}
    assert names == {
        "__init__.py", "domain.py", "seed_harness.py", "catalogue.py", "SKILL.md", "recipe.toml", "test_domain.py",
        "tasks.csv",
    }  # fmt: skip
    for name in names:
        text = (tmp_path / "plurals" / name).read_text()
        assert "$" not in text, name
        if name.endswith(".py"):
            ast.parse(text)
    assert len((tmp_path / "plurals" / "domain.py").read_text().splitlines()) < 120


def test_no_piece_leaves_dead_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    from whale.testing.catalogues import compatible_specs

    new_domain("pieces_here", out=tmp_path / "pieces_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    catalogue = import_module("pieces_here.catalogue").CATALOGUE
    specs = compatible_specs(catalogue)
    assert len({catalogue.render(spec) for spec in [{}, *specs]}) == len(specs) + 1
    for spec in specs:
        assert not unused_names(catalogue.render(spec)), spec


def test_the_verifier_folds_what_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    new_domain("folding_here", out=tmp_path / "folding_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = import_module("folding_here.domain").judge
    for answer, reference, reward in [
        ("Beyonce\u0301", "Beyonc\u00e9", 1.0),
        ("  THE  \ufb01sh! ", "the fish", 1.0),
        ("\u22125", "-5", 1.0),
        ("5", "-5", 0.0),
        ("9.54", "8.54", 0.0),
        ("854", "8.54", 0.0),
        ("8.54.", "8.54", 1.0),
        ("C", "C++", 0.0),
        ("\u0915\u093f", "\u0915\u0940", 0.0),  # two syllables that differ in a combining sign
        ("cat and dog", "dog", 0.0),
        ("", "dog", 0.0),
    ]:
        assert judge(answer, [reference]).reward == reward, (answer, reference)
    assert judge("It is a dog.", ["dog"]).reason == "not_alone"
    assert judge("A hotdog", ["dog"]).reason == "wrong"
    assert judge(" ... ", ["dog"]).reason == "empty"
    assert judge("", ["..."]).reward is None


@pytest.mark.parametrize("name", ["my-domain", "class", "1st", "_hidden", "toy", "math", "json", "", "größe"])
def test_names_that_cannot_be_a_package_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        new_domain(name, out=tmp_path / name if name else Path(name))
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_used_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "made" / "quiz"
    rows = table(tmp_path / "rows.jsonl")
    few = table(tmp_path / "few.jsonl", 8)
    with pytest.raises(
        ConfigError, match=r"--question question: .*rows.jsonl has no such column; its columns are Frage"
    ):
        new_domain("quiz", rows, out=out)
    with pytest.raises(DomainError, match=r"few.jsonl: 7 different questions; at least 12"):
        new_domain("quiz", few, "Frage", "Antwort", out)
    with pytest.raises(DomainError, match="cannot be read"):
        new_domain("quiz", tmp_path / "none.csv", out=out)
    with pytest.raises(ConfigError, match="its last part must be quiz"):
        new_domain("quiz", rows, "Frage", "Antwort", tmp_path / "other")
    with pytest.raises(ConfigError, match="give it with --csv FILE"):
        new_domain("quiz", None, "Frage", "Antwort", out)
    assert not out.exists()
    assert not list((tmp_path / "made").iterdir())
    new_domain("quiz", rows, "Frage", "Antwort", out)
    with pytest.raises(ConfigError, match="exists already"):
        new_domain("quiz", rows, "Frage", "Antwort", out)
