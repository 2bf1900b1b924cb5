"""The command line: thin. Each command parses its arguments and calls one function of the library."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from whale.cli_data import data_app, domain_app
from whale.cli_retriever import index, serve_retriever
from whale.errors import ConfigError, WhaleError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Train an agent's weights and its harness together.")  # fmt: skip
harness_app = typer.Typer(no_args_is_help=True, help="Check, show and compare harness files.")
models_app = typer.Typer(no_args_is_help=True, help="Base policies on this machine.")
app.add_typer(harness_app, name="harness")
app.add_typer(models_app, name="models")
app.add_typer(data_app, name="data")
app.add_typer(domain_app, name="domain")
out = Console(highlight=False, soft_wrap=True)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value]...", help="Overrides, e.g. schedule.steps=4.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe file (TOML).")],
    overrides: Overrides = None,
    fork: Annotated[
        Path | None,
        typer.Option(help="Continue from the recipe's run folder in this new folder, under the changed settings."),
    ] = None,
) -> None:
    """Run a recipe, or continue it: the same command after a stop goes on where it was."""
    from whale.config import load_config
    from whale.launch import fork as fork_run
    from whale.store import Store

    config = load_config(recipe, overrides or [])
    if fork is not None:
        source = Path(config.run_dir)
        config = config.model_copy(update={"run_dir": str(fork)})
        if not (fork.exists() and Store(fork).read_state()):
            fork_run(source, config)
    _launch(config)


@app.command()
def resume(folder: RunFolder) -> None:
    """Continue a run folder under its own configuration."""
    from whale.store import Store

    config = Store(folder).read_config()
    _launch(config.model_copy(update={"run_dir": str(folder)}))


@app.command()
def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe file (TOML).")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say what a recipe will spend at most, before anything is spent."""
    from whale.config import load_config
    from whale.doctor import machine_rate, model_parameters
    from whale.plan import plan as make_plan

    config = load_config(recipe, overrides or [])
    parameters = model_parameters(config.model) if config.engine.kind == "transformers" else None
    figures = make_plan(config, parameters, machine_rate() if parameters else None)
    if as_json:
        _print_json(figures)
        return
    rollouts = figures["rollouts"]
    out.print(f"weight steps     {figures['weight_steps']}")
    out.print(f"harness phases   {figures['harness_phases']} with {figures['proposal_rounds']} proposal rounds in all")
    evaluation = "by the size of the test split" if rollouts["eval"] is None else rollouts["eval"]
    out.print(f"rollouts         {rollouts['train']} training + {rollouts['search']} search; evaluation {evaluation}")
    out.print(f"sampled tokens   at most {figures['sampled_tokens']:,}")
    out.print(f"disk             about {figures['disk_bytes'] / 1e9:.1f} GB")
    seconds = figures["seconds"]
    minutes = f"roughly {seconds / 60:.0f} min on this machine" if seconds is not None else "unknown (no model here)"
    out.print(f"time             {minutes}")


@app.command()
def report(
    folder: RunFolder,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(help="Where to write the HTML page; default: report.html in the run folder.")
    ] = None,
) -> None:
    """Summarise a run: figures in the terminal, and one self-contained HTML page."""
    from whale.report.data import summarise

    summary = summarise(folder)
    if as_json:
        _print_json(summary)
        return
    from whale.report.html import write_report
    from whale.report.text import print_report

    print_report(summary, out)
    out.print(f"page: {write_report(folder, html)}")


@app.command(name="eval")
def evaluate(
    folder: RunFolder,
    split: Annotated[str, typer.Option(help="weights, search, test or unseen.")] = "test",
    k: Annotated[int, typer.Option("-k", min=1, help="Rollouts per task.")] = 8,
    tasks: Annotated[
        int | None, typer.Option(min=0, help="Tasks, from the first on; 0 takes all; default: as the run's looks.")
    ] = None,
    harness: Annotated[
        str, typer.Option(help="A candidate id of the run or a file; default: the accepted harness.")
    ] = "",
    base: Annotated[bool, typer.Option("--base", help="Use the untrained base policy.")] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the policy of a run under a harness on a split, outside the run's own history."""
    from whale.tryout import evaluate_folder

    figures = evaluate_folder(folder, split, k, harness, base, tasks)
    if as_json:
        _print_json(figures)
        return
    estimate = "unknown" if figures["mean"] is None else "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figures)
    out.print(
        f"{split} mean@{k}: {estimate}  ({figures['tasks']} tasks, coverage {figures['coverage']:.2f}, "
        f"harness {figures['harness']}, policy {figures['policy_version']})"
    )
    if len(figures["families"]) > 1:
        for family, each in figures["families"].items():
            share = "unknown" if each["mean"] is None else "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**each)
            out.print(f"  {family or '(no family)'}: {share}  ({each['tasks']} tasks)", markup=False)
        average = "unknown" if figures["average"] is None else f"{figures['average']:.3f}"
        out.print(f"  mean of these: {average}")


@app.command(name="try")
def try_harness(
    harness: Annotated[
        str, typer.Argument(help="Harness file, `h0` for the domain's seed harness, or a candidate id with --run.")
    ],
    domain: Annotated[str, typer.Option("--domain", "-d", help="Domain.")] = "",
    task: Annotated[str, typer.Option("--task", "-t", help="Task id, or SPLIT:NUMBER such as search:0.")] = "search:0",
    n: Annotated[int, typer.Option("-n", min=1, help="Rollouts.")] = 1,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="Take policy, domain and limits from this run.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="Take model, domain and limits from this recipe.")] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Run again each time the file is saved, until Ctrl-C.")] = False,
) -> None:
    """Run a harness on one task and show everything: calls, tools, tokens, verdict."""
    from whale.tryout import Tryout

    tryout = Tryout.open(domain, run_folder, recipe)
    if edit:
        tryout.watch(harness, task, n, out)
    else:
        tryout.show(harness, task, n, out)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Run folder or checkpoint folder.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; new or empty.")],
    merge: Annotated[
        bool, typer.Option("--merge/--adapter", help="Merge an adapter into the weights, or copy it alone (peft).")
    ] = True,
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16; default: the precision the base had in training.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write the trained policy as a folder that transformers (or peft) loads, and compare the two."""
    from whale.export import export_policy

    if dtype not in ("", "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype}: choose float32 or bfloat16")
    figures = export_policy(source, target, merge, dtype or None)  # type: ignore[arg-type]
    if as_json:
        _print_json(figures)
    else:
        out.print(
            "policy {policy_version} in {dtype}; on {tokens} tokens the largest logit difference is "
            "{max_logit_difference:.3g}, the likeliest token is the same on {argmax_agreement:.1%}".format(**figures)
        )
    if not figures["agrees"]:
        kept = f" The adapter is kept in {figures['adapter']}." if figures["adapter"] else ""
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"warning: the export is not quite the policy that was scored.{kept} --dtype float32 rounds less.",
            markup=False,
        )


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option(help="Where runs will be stored.")] = Path("runs"),
    recipe: Annotated[Path | None, typer.Option(help="Recipe whose proposer is tried too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try what a run needs on this machine and print the fix for what is missing."""
    from whale.config import load_config
    from whale.doctor import diagnose

    checks = diagnose(folder, load_config(recipe) if recipe else None)
    if as_json:
        _print_json([vars(check) for check in checks])
    else:
        for check in checks:
            out.print(
                f"{'ok  ' if check.ok else 'FIX ' if check.needed else 'note'}  {check.name}: {check.detail}",
                markup=False,
            )
            if not check.ok and check.fix:
                out.print(f"      -> {check.fix}", markup=False)
    if any(not check.ok and check.needed for check in checks):
        raise typer.Exit(1)


@app.command()
def bench(
    run_folder: Annotated[Path, typer.Option("--run", help="Finished run whose rows and prompts are used.")] = Path(
        "runs/quickstart"
    ),
    model: Annotated[str, typer.Option(help="Base model; default: the run's last policy.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 takes all cores.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Times each side is measured, in turn.")] = 5,
    only: Annotated[
        list[str] | None, typer.Option(help="A figure or the beginning of some, e.g. sample; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure whale's speed against TRL and transformers on this machine, side by side."""
    from whale.bench.measure import Options
    from whale.bench.measure import bench as measure
    from whale.bench.text import print_bench

    say = Console(stderr=True, highlight=False, soft_wrap=True)
    result = measure(
        Options(run_folder, model, threads, repeats, only or ()), lambda line: say.print(line, markup=False)
    )
    if as_json:
        _print_json(result)
    else:
        print_bench(result, out)


app.command(name="index")(index)
app.command(name="serve-retriever")(serve_retriever)


@harness_app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Harness files.")],
    domain: Annotated[str, typer.Option("--domain", "-d", help="Domain.")],
    isolation: Annotated[str, typer.Option(help="sealed, contained or off.")] = "sealed",
) -> None:
    """Check the contract and smoke-run each file on toy tasks; costs no rollout."""
    from whale.tryout import validate_file

    problems = {path: validate_file(path, domain, isolation) for path in files}
    for path, problem in problems.items():
        out.print(f"{path}: {problem or 'ok'}", markup=False)
    if any(problems.values()):
        raise typer.Exit(1)


@harness_app.command()
def show(
    folder: RunFolder,
    candidate: Annotated[str, typer.Argument(help="Candidate id; default: the accepted harness.")] = "",
) -> None:
    """Print a candidate's source with its idea and results."""
    from whale.tryout import describe

    out.print(describe(folder, candidate), markup=False)


@harness_app.command()
def diff(
    folder: RunFolder,
    candidate: Annotated[str, typer.Argument(help="Candidate id.")],
    other: Annotated[str, typer.Argument(help="Candidate to compare with; default: its parent.")] = "",
) -> None:
    """Print the unified diff between two candidates."""
    from whale.tryout import difference

    out.print(difference(folder, candidate, other), markup=False)


@models_app.command()
def pull(name: str) -> None:
    """Fetch a base policy into the cache."""
    from whale.models import pull as fetch

    out.print(f"{name}: {fetch(name, lambda text: out.print(text, markup=False))}", markup=False)


@models_app.command(name="list")
def list_models(as_json: AsJson = False) -> None:
    """Known base policies and whether they are in the cache."""
    from whale.models import known

    infos = known()
    if as_json:
        _print_json([vars(info) for info in infos])
        return
    for info in infos:
        out.print(f"{'present' if info.present else '       '}  {info.name}  ({info.licence})", markup=False)


def main() -> None:
    """Entry point: errors of whale are messages, Ctrl-C says how to go on."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job is not stopped by Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)
    sys.path.append(os.getcwd())  # a domain of one's own (module:Class) is found where the command is given
    try:
        code = app(standalone_mode=False)  # click hands the code of typer.Exit back as a value
        if isinstance(code, int) and code:
            sys.exit(code)
    except KeyboardInterrupt:
        out.print("stopped. Give the same command again to continue.")
        sys.exit(130)
    except WhaleError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "format_message"):
            Console(stderr=True).print(f"error: {error.format_message()}", markup=False)
            sys.exit(2)
        raise


def _launch(config: Any) -> None:
    from whale.launch import launch
    from whale.progress import LiveProgress
    from whale.report.data import summarise
    from whale.report.html import write_report
    from whale.report.text import print_report

    folder = Path(config.run_dir)
    signal.signal(signal.SIGTERM, _interrupt)  # a scheduler's polite stop is a Ctrl-C
    try:
        launch(config, LiveProgress(folder))
    except KeyboardInterrupt:
        out.print(
            f"stopped. Finished work is kept in {folder}. Continue with the same command, or: whale resume {folder}"
        )
        raise SystemExit(130) from None
    print_report(summarise(folder), out)
    out.print(f"page: {write_report(folder)}")


def _interrupt(number: int, frame: object) -> None:
    """Stop here. What is torn down half-made (an event loop, a coroutine) has nothing to say about it."""
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore")
    raise KeyboardInterrupt


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))
