"""`draftwood bench`: strategies on one's own models and prompts, measured side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwood.apps.bench import figures, papers, show, spec_bench
from draftwood.apps.bench import latex as latex_table
from draftwood.apps.bench import report as page
from draftwood.apps.bench.folder import Folder, describe, finished, opened, stored
from draftwood.apps.bench.grid import Cell, cells
from draftwood.apps.bench.measure import run
from draftwood.apps.bench.plan import BenchPlan, data_sets, from_document, from_file
from draftwood.apps.files.datasets import DataSet
from draftwood.apps.models import by_name as models
from draftwood.apps.models.chat import AsChat
from draftwood.apps.terminal.options import numbers
from draftwood.apps.terminal.progress import watched
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import DraftwoodError, InvalidInput
from draftwood.base.whole_files import check_writable, write_json, write_text

JSON, CSV, PLOTS, ANSWERS = "results.json", "results.csv", "plots", "spec-bench"


def bench(
    folder: Annotated[
        Path | None,
        typer.Argument(help="With --report: the results folder, instead of --to.", show_default=False),
    ] = None,
    to: Annotated[Path, typer.Option(help="The results folder; an interrupted run in it continues.")] = Path(
        "draftwood-bench"
    ),
    file: Annotated[
        Path | None, typer.Option("--file", help="A TOML file with the run; flags override it.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="TARGET,DRAFT: folders, zoo or hub names; DRAFT may be a head; repeatable."),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="A recipe, POLICY or POLICY+VERIFIER (registered, or package.module:Name), "
            "generate-assisted or generate-prompt-lookup; options come after colons; repeatable."
        ),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="A file of prompts, .jsonl or text; repeatable.")
    ] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="Repeatable; default 0.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Nodes of a tree; repeatable.")] = None,
    prompt_length: Annotated[
        list[int] | None, typer.Option(help="Cut prompts to so many tokens; repeatable; 0: leave them whole.")
    ] = None,
    new_tokens: Annotated[list[int] | None, typer.Option(help="Lengths of texts; default 64.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts a file; default 6.")] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="Texts written at once, with commas: 1,4,16,64; default 1.")
    ] = None,
    arrivals: Annotated[
        list[str] | None,
        typer.Option(
            help="Requests that arrive at a shared decoder of --rows rows: poisson:RATE (a second), "
            "burst:N:EVERY (seconds), or poisson and burst:N with --load; repeatable."
        ),
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Shares of what ordinary decoding finishes, with commas: 0.5,0.8,0.95."),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="That arrive; default 48.")] = None,
    promise: Annotated[
        float | None, typer.Option(help="Tokens a second that users were promised, for the goodput.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="Turns of a conversation; default: all.", show_default=False)
    ] = None,
    chat: AsChat = False,
    repetitions: Annotated[int | None, typer.Option(help="Texts a prompt; default 1.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is drawn; default 0.")] = None,
    dtype: Annotated[models.Dtype | None, typer.Option(help="Precision of the models.")] = None,
    device: models.Device = None,
    widen: Annotated[
        float | None, typer.Option(help="Parameters that a target of the zoo is widened to.")
    ] = None,
    offload: models.Offload = None,
    engine: models.ChosenEngine = None,
    trust_remote_code: models.TrustRemoteCode = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Measure over a Ray cluster: its address, auto, or local to start one."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --ray: number of workers; default: one per GPU, or per machine without one."
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(help="A paper's table, such as dyspec-table1: its setting and its numbers."),
    ] = None,
    plots: Annotated[bool, typer.Option("--plots", help="Draw the plots too; needs matplotlib.")] = False,
    answers: Annotated[
        bool, typer.Option("--spec-bench", help="Write the answers as Spec-Bench's own files too.")
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Measure nothing; show what is in the folder, and write it as a page with plots."
        ),
    ] = False,
    latex: Annotated[
        Path | None,
        typer.Option(help="A file for the results as a LaTeX table (booktabs).", show_default=False),
    ] = None,
) -> None:
    """Measure strategies side by side on models and prompts.

    Temperatures, budgets and lengths are swept. Every text is on disk as soon as it is written, so a run that
    was broken off goes on where it stopped. Ordinary generate() always runs along, taking turns with the
    others, and their texts are compared with its. The folder holds results.json, results.csv, and with
    --plots the plots; --report adds report.html and report.md.

    \b
    Examples:
      draftwood bench
      draftwood bench --strategy dyspec --strategy leviathan --budget 8 --plots
      draftwood bench --data gsm8k_test.jsonl --data notes.txt --to mine
      draftwood bench --temperature 0 --temperature 0.6 --budget 8 --budget 32
      draftwood bench --strategy my_policy:Comb:length=4 --strategy chain
      draftwood bench --file run.toml --prompts 20
      draftwood bench --report mine --latex table.tex
      draftwood bench --to mine --ray auto
      draftwood bench --rows 1,4,16,64 --strategy throughput-dyspec --prompts 64
      draftwood bench --rows 8 --arrivals poisson --load 0.5,0.8 --promise 30
      draftwood bench --pair big/,small/ --offload scratch/ --budget 64
      draftwood bench --pair big/,head/ --chat --strategy dyspec --budget 16
      draftwood bench --paper dyspec-table1 --data notes.txt --to table1
    """
    flags: dict[str, Any] = {
        "pairs": pair,
        "strategies": strategy,
        "data": data,
        "temperatures": temperature,
        "budgets": budget,
        "prompt_lengths": prompt_length,
        "new_tokens": new_tokens,
        "prompts": prompts,
        "rows": numbers("--rows", rows, int),
        "arrivals": arrivals,
        "loads": numbers("--load", load, float),
        "requests": requests,
        "promise": promise,
        "turns": turns,
        "chat": chat or None,
        "repetitions": repetitions,
        "seed": seed,
        "dtype": dtype and str(dtype),
        "device": device,
        "widen": widen,
        "offload": offload and str(offload),
        "engine": engine and str(engine),
        "trust_remote_code": trust_remote_code or None,
        "paper": paper,
    }
    flags = {name: value for name, value in flags.items() if value is not None}
    if folder is not None and not report:
        raise InvalidInput(
            f"{str(folder)!r} was given as a folder to report on; add --report, or give --to {folder} to "
            "measure into it."
        )
    to = folder or to
    if latex is not None:
        check_writable(latex)
    if plots:
        check_plots()
    if workers is not None and ray is None:
        raise InvalidInput("--workers needs --ray; give the address of a cluster.")
    if report and ray is not None:
        raise InvalidInput("--report shows what is in the folder, so it cannot be combined with --ray.")
    if report:
        if flags or file:
            named = "--file" if file else page.option_of(next(iter(flags)))
            raise InvalidInput(f"--report shows what is in the folder, so leave {named} out.")
        plan, names = from_document(stored(to)["configuration"])
    else:
        plan = _plan(file, flags)
        if ray is not None and plan.offload:
            raise InvalidInput(
                f"--offload {plan.offload} is one process's folder, which workers of --ray would write over "
                "one another; leave one of the two out."
            )
        if ray is not None and plan.arrivals:
            raise InvalidInput("--arrivals measures the queue of one machine; leave --ray out.")
        if answers and not plan.by_itself:
            raise InvalidInput("--spec-bench writes texts one at a time; leave --rows and --arrivals out.")
        if answers:
            spec_bench.check(data_sets(plan))
        names = _measure(plan, to) if ray is None else _measure_over_ray(plan, to, ray, workers)
    _write(to, plan, names, plots=plots, report=report, latex=latex)
    if answers:
        to_stderr(f"{to / ANSWERS}: {', '.join(spec_bench.write(to / ANSWERS, finished(to)))}")


def _plan(file: Path | None, flags: dict[str, Any]) -> BenchPlan:
    """Returns the plan; flags override the file, and both override a paper's setting."""
    fields = {**(from_file(file) if file else {}), **flags}
    try:
        setting = papers.paper(str(fields["paper"])).fields() if fields.get("paper") else {}
        return BenchPlan(**{**setting, **fields}).resolved()
    except DraftwoodError as error:
        if file is None or flags:
            raise
        raise InvalidInput(f"{str(file)!r}: {error}") from error


def _measure(plan: BenchPlan, to: Path) -> list[str]:
    """Everything that is missing in the folder; returns the names of the data sets."""
    sets = data_sets(plan)
    models.quiet()
    with opened(to, describe(plan.document())) as folder:
        _watched(folder, *run(plan, sets, folder))
        _check_whole(plan, sets, folder)
    return list(sets)


def _measure_over_ray(plan: BenchPlan, to: Path, address: str, workers: int | None) -> list[str]:
    """Measures the run with the workers of a cluster."""
    from draftwood.apps.bench.spread import spread

    sets = data_sets(plan)
    with spread(address, plan, sets, workers) as spread_out, opened(to, spread_out.description) as folder:
        _watched(folder, *spread_out.run(plan, sets, folder))
        _check_whole(plan, sets, folder)
    return list(sets)


def _check_whole(plan: BenchPlan, sets: Mapping[str, DataSet], folder: Folder) -> None:
    """Raise `InvalidInput` with the names of cells that a run has not measured, though it has ended."""
    wanted = [cell.key for cell in cells(plan, sets)]
    if missing := [key for key in wanted if key not in folder.cells]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidInput(
            f"{len(missing)} of {len(wanted)} cells were not measured: {'; '.join(missing[:3])}{more}; "
            "repeat the command, which measures them."
        )


def _watched(folder: Folder, missing: list[Cell], steps: Iterator[Cell]) -> None:
    from draftwood.apps.terminal.plain_console import PlainConsole

    if folder.cells and missing:
        to_stderr(f"{len(folder.cells)} cells are there already, {len(missing)} are missing.")
    watched(steps, "measuring", total=len(missing), console=PlainConsole(stderr=True))


def _write(
    to: Path, plan: BenchPlan, names: list[str], *, plots: bool, report: bool, latex: Path | None
) -> None:
    from draftwood.apps.terminal.plain_console import PlainConsole

    described, known = stored(to), finished(to)
    rows = figures.rows(plan, names, known)
    if not rows:
        raise InvalidInput(f"{str(to)!r} holds no finished text yet; run bench without --report.")
    table = papers.paper(plan.paper) if plan.paper else None
    content = show.document(rows, described, known)
    if table is not None:
        content["paper"] = papers.document(table, rows)
    write_json(to / JSON, content)
    show.write_csv(to / CSV, rows, described)
    written, drawn = [JSON, CSV], list[str]()
    if plots or (report and _can_plot()):
        from draftwood.apps.bench.plots import draw

        drawn = draw(to / PLOTS, rows, known)
        written += [f"{PLOTS}/{one}" for one in drawn]
    if report:
        page.write(to, rows, content, [to / PLOTS / one for one in drawn])
        written += [page.HTML, page.MARKDOWN]
    console = PlainConsole()
    show.tables(rows, content, console)
    if table is not None:
        papers.show(table, rows, console)
    to_stderr(f"{to}: {', '.join(written)}")
    if report and not drawn:
        to_stderr(
            "The report has no plots, which need matplotlib; install it, or draftwood with the extra bench."
        )
    if latex is not None:
        write_text(latex, latex_table.table(rows, content))
        to_stderr(f"{latex}: a table for \\usepackage{{booktabs}}.")


def _can_plot() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def check_plots() -> None:
    """Raise `InvalidInput` where the plots cannot be drawn."""
    if not _can_plot():
        raise InvalidInput("--plots needs matplotlib; install it, or draftwood with the extra bench.")
