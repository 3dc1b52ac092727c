"""Prints reports as tables on the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from graphopt.debug.diff import DiffNode, ModelDiff
from graphopt.remarks import Code, Remark
from graphopt.report.account import Account, AccountGroup, Status
from graphopt.report.answer import equality, factor, interval, is_faster, is_slower, speed
from graphopt.report.data import ModelStats, Report, node_counts
from graphopt.report.layers import grouped
from graphopt.report.layout import say, say_facts, show, table, width
from graphopt.report.text import amount, count, milliseconds, operators, plain, size, small
from graphopt.runtime.discovery import CPU
from graphopt.verification.report import Verdict

if TYPE_CHECKING:
    from graphopt.measure.bench import BenchReport, BenchRow, Profile, Timing
    from graphopt.measure.kernel_bench import KernelBench
    from graphopt.measure.profiling import Placement
    from graphopt.measure.tune import Tuning
    from graphopt.placement.forecast import Forecast
    from graphopt.runtime.doctor import Findings
    from graphopt.runtime.routes import Gpu, Reason, Route
    from graphopt.runtime.selftest import SelfTest
    from graphopt.verification.verify import VerifyReport

MAX_OPERATOR_ROWS = 15
# Largest number of printed failures of the self-test, so that the text fits into an issue; the JSON report has all.
MAX_FAILURES = 20
_COLOURS = {Verdict.EQUAL: "green", Verdict.DIFFERENT: "red", Verdict.RANDOM: "yellow"}
# Largest number of printed initializers with range problems; the JSON report has all.
MAX_RANGES = 20
# All groups with these results are listed, even small ones.
NOT_REWRITTEN = (Status.COULD_GAIN, Status.NO_GAIN, Status.REFUSED)
# Smaller groups with other results are counted, but not listed.
LEAST_SHARE = 0.01


def print_before_after(before: ModelStats, after: ModelStats, console: Console) -> None:
    """Prints the operators with different counts, and the sizes."""
    rows = [(op, before.nodes.get(op, 0), after.nodes.get(op, 0)) for op in sorted({*before.nodes, *after.nodes})]
    rows = [row for row in rows if row[1] != row[2]]
    if not rows:
        return
    shown = table(("", ">before", ">after"))
    for op, a, b in rows:
        shown.add_row(plain(op), str(a or "-"), str(b or "-"))
    shown.add_row("nodes", str(sum(before.nodes.values())), str(sum(after.nodes.values())), style="bold")
    shown.add_row("weights", size(before.initializer_bytes), size(after.initializer_bytes))
    if before.multiply_adds is not None and after.multiply_adds is not None:
        shown.add_row("multiply-adds", f"{before.multiply_adds:,}", f"{after.multiply_adds:,}")
    show(shown, console)


def print_all(
    report: Report,
    accuracy: VerifyReport | None,
    times: BenchReport | None,
    tuning: Tuning | None,
    console: Console,
) -> None:
    """Prints all results of an optimization."""
    print_before_after(report.before, report.after, console)
    print_passes(report, console)
    print_refusals(report.remarks, console)
    print_ranges(report, console)
    if tuning is not None:
        print_tuning(tuning, console)
    if times is not None:
        print_bench(times, console)
    if accuracy is not None:
        print_verify(accuracy, console)
    for note in report.notes:
        say(plain(note), console)


def print_passes(report: Report, console: Console) -> None:
    """Prints a line for the passes that rewrote something, and one for the passes that had no candidate."""
    if worked := [p for p in report.passes if p.applied]:
        say(f"rewrites: {', '.join(f'{p.name} {p.applied}' for p in worked)}", console)
    if idle := [p.name for p in report.passes if not p.applied and not p.refused]:
        say(f"[dim]no candidates of {', '.join(idle)}[/]", console)


def print_refusals(remarks: Sequence[Remark], console: Console) -> None:
    """Prints the number of refusals by code."""
    codes = Counter(r.code for r in remarks if not r.applied)
    if codes:
        say(f"refused: {', '.join(f'{code} {n}' for code, n in codes.most_common())} (--explain shows each)", console)


def print_remarks(remarks: Sequence[Remark], console: Console) -> None:
    """Prints a line for each candidate."""
    for remark in remarks:
        say(remark_line(remark, ", ".join(plain(n) for n in remark.nodes)), console)
    if not remarks:
        say("no candidates", console)


def remark_line(remark: Remark, where: str) -> str:
    """Returns a rewrite or a refusal with its remedy, as markup; `where` names the nodes."""
    if remark.applied:
        place = f"{where}: " if where else ""  # empty for the whole model
        return f"[green]applied[/] {remark.pass_name}: {place}{plain(remark.detail)}"
    code = Code[remark.code]
    return (
        f"[yellow]refused[/] {remark.pass_name}: {where}: {remark.code}: {code.meaning} "
        f"({plain(remark.detail)}); to do: {code.advice}; see graphopt explain {remark.code}"
    )


def print_ranges(report: Report, console: Console) -> None:
    """Prints the initializers that lose precision in float16, the worst first."""
    if not report.initializer_ranges:
        return
    columns = ("initializer", ">elements", ">beyond 65504", ">subnormal", ">zero", ">share", "stored as")
    say("[bold]initializers in float16[/]", console)
    shown = table(columns)
    worst = sorted(report.initializer_ranges, key=lambda r: r.error, reverse=True)
    for r in worst[:MAX_RANGES]:
        numbers = (str(n) for n in (r.size, r.overflow, r.subnormal, r.zero))
        shown.add_row(plain(r.name), *numbers, f"{r.share:.1%}", "float16" if r.converted else "float32")
    show(shown, console)
    if len(worst) > MAX_RANGES:
        say(f"and {len(worst) - MAX_RANGES} more, with smaller errors (--json lists all)", console)


def print_verdict(report: VerifyReport, console: Console) -> None:
    """Prints the verdict and its evidence."""
    say(f"[bold {_COLOURS[report.verdict]}]{equality(report)}[/]: {plain(report.summary)}", console)


def verdict(found: Verdict) -> str:
    """Returns a verdict as markup."""
    return f"[{_COLOURS[found]}]{found.value}[/]"


def print_verify(report: VerifyReport, console: Console) -> None:
    """Prints the worst row of each output, gaps in coverage and notes."""
    for omitted in ((), ("SNR dB",), ("SNR dB", "worst slice")):  # omitted on a narrow terminal
        shown = _outputs(report, omitted)
        if width(shown) <= console.width:
            break
    if shown.row_count:
        show(shown, console)
    for gap in report.not_covered:
        say(f"[yellow]not covered:[/] {plain(gap)}", console)
    for note in report.notes:
        say(f"[yellow]note:[/] {plain(note)}", console)


def _outputs(report: VerifyReport, omitted: Sequence[str]) -> Table:
    columns = ["output", ">max abs", ">error / RMS", ">allowed", ">SNR dB", "worst slice", ""]
    kept = [i for i, column in enumerate(columns) if column.removeprefix(">") not in omitted]
    made = table([columns[i] for i in kept])
    for row in report.worst_outputs():
        worst = f"{plain(row.slice)} {small(row.slice_error)} of {small(row.slice_limit)}" if row.slice else ""
        numbers = (small(row.max_abs, 3), small(row.rel_rms, 3), small(row.limit, 3), f"{row.snr_db:.1f}")
        cells = (plain(row.name), *numbers, worst, "[green]equal[/]" if row.equal else f"[red]{plain(row.reason)}[/]")
        made.add_row(*(cells[i] for i in kept))
    return made


def print_diff(found: ModelDiff, console: Console) -> None:
    """Prints the rewritten places by kind and layer."""
    if found.equal:
        say("[bold]the same nodes and weights[/]", console)
        return
    places = count(len(found.neighbourhoods), "place")
    say(f"[bold]{node_counts(found.before, found.after)}, {places} rewritten[/]", console)
    print_before_after(found.before, found.after, console)
    if found.neighbourhoods:
        for kind in grouped(
            found.neighbourhoods,
            kind=lambda h: (_named(h.removed), _named(h.added)),
            name=lambda h: (h.removed or h.added)[-1].label,
        ):
            before, after = kind.kind
            say(f"{plain(before)} -> {plain(after)}{kind.places}: {plain(kind.where)}", console)
    removed, added = set(found.removed_initializers), set(found.added_initializers)
    changed = len(found.changed_initializers)
    say(f"weights: {len(removed)} removed, {len(added)} added, {changed} changed", console)


def _named(nodes: Sequence[DiffNode]) -> str:
    return operators(n.op_type for n in nodes) or "-"


def print_speed(report: BenchReport, console: Console) -> None:
    """Prints the speedup, or the time of a single model."""
    times = speed(report)
    style = "bold green" if is_faster(report) else "bold red" if is_slower(report) else "bold"
    if not times and report.rows:
        best = min(report.rows, key=lambda row: row.before.median_ms)
        times = f"{milliseconds(best.before.median_ms)} ms ({best.setting})"
    elif len(report.rows) == 1 and (row := report.rows[0]).after is not None:
        times += f", {milliseconds(row.before.median_ms)} -> {milliseconds(row.after.median_ms)} ms"
    say(f"[{style}]{plain(times)}[/]", console)


def print_placements(report: BenchReport, console: Console) -> None:
    """Prints the placement of nodes, one line for each session."""
    for profile in report.profiles:
        for side, placed in (("A", profile.before_placement), ("B", profile.after_placement)):
            if placed is not None:
                say(f"{side}, {plain(str(profile.setting))}: {plain(placed.line)}", console)


def print_bench(report: BenchReport, console: Console) -> None:
    for line in report.conditions:
        say(plain(line), console)
    if any(row.after is not None for row in report.rows):
        _print_comparison(report, console)
    else:
        _print_single(report, console)
    for knee in report.knees:
        sides = [f"{side} {knee[side]}" for side in ("before", "after") if knee[side] is not None]
        say(f"batch within 5 % of the best throughput: {', '.join(sides)} ({plain(knee['setting'])})", console)
    for profile in report.profiles:
        _print_profile(profile, console)
    for note in report.notes:
        say(f"[yellow]note:[/] {plain(note)}", console)


def print_tuning(tuning: Tuning, console: Console) -> None:
    if tuning.measurements:
        say("[bold]measured classes of candidates[/]", console)
        shown = table((">speedup", ">95 % interval", "", "candidate"))
        for name, m in tuning.measurements.items():
            decision = {True: "[green]rewritten[/]", False: "not rewritten", None: "as estimated"}[m.is_faster]
            shown.add_row(f"{m.speedup:.2f}x", f"{m.low:.2f}-{m.high:.2f}", decision, plain(name))
        show(shown, console)
    if tuning.whole_model:
        times = ", ".join(f"by {name} {ms:.3f} ms" for name, ms in tuning.whole_model.items())
        say(f"whole model: {times}; chosen: {tuning.chosen}", console)
    if tuning.record is not None:
        say(f"fastest implementations: {plain(str(tuning.record))}, for the provider's option 'measured'", console)
    for note in tuning.notes:
        say(f"[yellow]note:[/] {plain(note)}", console)


def print_findings(found: Findings, console: Console) -> None:
    """Prints the results of `graphopt doctor`."""
    say_facts([(name, plain(value)) for name, value in found.rows], console)
    _print_routes(found.routes, console)
    for problem in found.problems:
        say(f"[red]problem:[/] {plain(problem)}", console)


def _print_routes(routes: Sequence[Route], console: Console) -> None:
    """Prints a section for each route to a GPU; devices of several routes are described once."""
    described: set[str] = set()
    for route in routes:
        state = "[green]ready[/]" if route.ready else "[yellow]not used[/]"
        say(f"[bold]{plain(route.title)}[/] ({route.provider}): {state}", console)
        if route.reason is not None:
            _print_reason("  ", route.reason, console)
        for note in route.notes:
            _print_reason("  note: ", note, console)
        if not route.devices or route.runtime in described:
            continue
        described.add(route.runtime)
        facts = [("runtime", f"{route.version}, {route.runtime}"), ("device code", ", ".join(route.code) or "none")]
        rows = [(name, plain(value)) for name, value in facts]
        for device in route.devices:
            rows.append(("GPU" if device.number is None else f"GPU {device.number}", plain(_gpu_line(device))))
            if device.reason is not None:
                rows.append(("", f"[yellow]not used:[/] {plain(str(device.reason))}"))
            for library in device.libraries:
                version = ", ".join(filter(None, (library.version, library.path)))
                why = "" if library.reason is None else f"[yellow]not used:[/] {plain(str(library.reason))}"
                rows.append((f"  {plain(library.name)}", " ".join(filter(None, (plain(version), why)))))
        say_facts(rows, console)


def _gpu_line(device: Gpu) -> str:
    kind = "integrated, " if device.integrated else ""
    code = f"runs the code for {device.code}" if device.code else "no code for it"
    facts = f"{device.arch} at {device.bus_id}, {kind}{size(device.memory)}, {device.compute_units} compute units"
    return f"{device.name}, {facts}, {code}"


def _print_reason(before: str, reason: Reason, console: Console) -> None:
    say(f"{before}{plain(reason.text)} [dim]({reason.code})[/]", console)
    if reason.remedy:
        say(f"  to fix it: {plain(reason.remedy)}", console)


def print_selftest(tested: SelfTest, console: Console) -> None:
    device = " ".join(dict.fromkeys(filter(None, (tested.device.name, tested.device.arch, tested.device.driver))))
    columns = ["kernels", "type", ">passed", ">inputs", ">largest error / RMS", ">limit"]
    say(f"[bold]self-test: {plain(tested.provider)} on {plain(device)}[/]", console)
    shown = table(columns)
    for family, dtype, results in tested.families():
        passed = [r for r in results if r.passed]
        colour = "green" if len(passed) == len(results) else "red"
        worst = max((r.error for r in passed), default=float("inf"))
        counts = f"[{colour}]{len(passed)} of {len(results)}[/]"
        inputs = str(sum(r.cases for r in results))
        limit = results[0].limit
        digits = 0 if float(f"{limit:.0e}") == limit else 1
        shown.add_row(family, dtype, counts, inputs, f"{worst:.1e}", f"{limit:.{digits}e}")
    show(shown, console)
    for result in tested.failed[:MAX_FAILURES]:
        by = f" by {plain(result.implementation)}" if result.implementation else ""
        say(f"[red]failed:[/] {result.op}, {result.dtype}{by}: {plain(result.detail)}", console)
    _print_more_failures(len(tested.failed), console)
    for implementation, why in dict.fromkeys((r.implementation, r.refused) for r in tested.results if r.refused):
        say(f"not tried here: {plain(implementation)}: {plain(why)}", console)
    if tested.skipped:
        skipped = ", ".join(f"{plain(group)} ({n})" for group, n in tested.skipped_groups().items())
        say(f"not tested for lack of time; --selftest without --bench tests them: {skipped}", console)
    count = len(tested.sessions)
    colour = "red" if tested.failed_sessions else "green"
    share = f"[{colour}]{count - len(tested.failed_sessions)} of {count}[/]"
    say(f"sessions that mix our nodes with the runtime's: {share} passed", console)
    for s in tested.failed_sessions[:MAX_FAILURES]:
        say(f"[red]failed:[/] {' '.join(s.nodes)}, {s.dtype}: {plain(s.detail)}", console)
    _print_more_failures(len(tested.failed_sessions), console)


def _print_more_failures(count: int, console: Console) -> None:
    if count > MAX_FAILURES:
        say(f"[red]failed:[/] {count - MAX_FAILURES} more; --json lists all", console)


def print_kernel_bench(found: KernelBench, console: Console) -> None:
    """Prints the time of each implementation for each shape, and the result of the soak test."""
    shown = table(("shape", "type", "implementation", ">ms", ">of peak"))
    for time in found.shapes:
        share = "-" if time.share is None else f"{time.share:.0%}"
        if time.milliseconds is not None:
            by = plain(time.implementation) or "chosen"
            shown.add_row(plain(time.name), time.dtype, by, f"{time.milliseconds:.3f}", share)
    show(shown, console)
    for shape in (time for time in found.shapes if time.milliseconds is None and not time.implementation):
        say(f"[red]failed:[/] {plain(shape.name)}, {shape.dtype}: {plain(shape.refused)}", console)
    if found.skipped:
        say(f"not timed: {plain(', '.join(found.skipped))}", console)
    if (soak := found.soak) is not None:
        colour = "red" if soak.wrong else "green"
        say(
            f"captured graphs: [{colour}]{len(soak.wrong)} of {soak.runs}[/] runs differ from launches, "
            f"{soak.captured} were replays; {soak.sessions} sessions, memory grew by {size(soak.growth)}",
            console,
        )
        for line in soak.wrong[:3]:
            say(plain(line), console)


def _setting(row: BenchRow) -> str:
    s = row.setting
    provider = s.provider.removesuffix("ExecutionProvider")
    threads = f"{s.threads or 'auto'} thread" + ("" if s.threads == 1 else "s")
    sizes = (f"{name}={n}" for name, n in s.sizes.items())
    io = [] if s.provider == CPU else [f"{s.io} I/O"]
    return plain(", ".join((provider, threads, *sizes, *io)))


def _memory(timing: Timing) -> str:
    if timing.memory is None:
        return "-"
    device = "" if timing.memory.device is None else f" + {size(timing.memory.device)} GPU"
    return size(timing.memory.host) + device


def _numbers(t: Timing) -> tuple[str, ...]:
    return f"{t.median_ms:.3f}", f"{t.spread:.0%}", f"{t.p95_ms:.3f}", f"{t.throughput:.1f}", _memory(t)


def _print_single(report: BenchReport, console: Console) -> None:
    shown = table((">ms", ">spread", ">p95 ms", ">items/s", ">memory", "setting"))
    for row in report.rows:
        shown.add_row(*_numbers(row.before), _setting(row))
    show(shown, console)


def _print_comparison(report: BenchReport, console: Console) -> None:
    shown = table(("", ">ms", ">spread", ">p95 ms", ">items/s", ">memory", "speedup"))
    for row in report.rows:
        assert row.after is not None
        if len(report.rows) > 1:
            say(f"[bold]{_setting(row)}[/]", console)
            shown = table(("", ">ms", ">spread", ">p95 ms", ">items/s", ">memory", "speedup"))
        colour = {"faster": "green", "slower": "red"}.get(row.verdict)
        shown.add_row("before", *_numbers(row.before), f"[{colour}]{factor(row)}[/]" if colour else factor(row))
        shown.add_row("after", *_numbers(row.after), interval(row))
        show(shown, console)


def _print_profile(profile: Profile, console: Console) -> None:
    from graphopt.measure.profiling import TimedOperators, by_operators

    both = profile.after is not None
    columns = (">before ms", ">after ms", ">count", "before", "after") if both else (">ms", ">nodes", "operator")
    say(f"[bold]time by operators ({plain(str(profile.setting))})[/]", console)
    shown_table = table(columns)
    kinds = by_operators(profile.subgraphs)
    shown, rest = kinds[:MAX_OPERATOR_ROWS], kinds[MAX_OPERATOR_ROWS:]
    if rest:
        sums = (sum(k.count for k in rest), sum(k.before_us for k in rest), sum(k.after_us for k in rest))
        shown.append(TimedOperators(f"{len(rest)} more kinds", "", *sums))
    for kind in shown:
        same = "=" if kind.before_ops == kind.after_ops else plain(kind.after_ops)
        before_ms, after_ms = f"{kind.before_us / 1e3:.3f}", f"{kind.after_us / 1e3:.3f}"
        sides = (before_ms, after_ms, str(kind.count), plain(kind.before_ops), same)
        shown_table.add_row(*(sides if both else (before_ms, str(kind.count), plain(kind.before_ops))))
    show(shown_table, console)
    _print_placement("before" if both else "placement", profile.before_placement, console)
    if profile.after_placement is not None:
        _print_placement("after", profile.after_placement, console)


def _print_placement(name: str, placed: Placement, console: Console) -> None:
    nodes = ", ".join(f"{n:,} on {provider}" for provider, n in placed.nodes.items())
    fused = f"{count(placed.file_nodes, 'node')} in the file; after the runtime's own fusions "
    copied = f"{placed.copies} {'copy' if placed.copies == 1 else 'copies'} between host and device"
    copies = f"; {copied}, {size(placed.copied_bytes)}" if placed.copies else ""
    left = f"; left to the CPU: {', '.join(plain(n) for n in placed.on_cpu[:5])}" if placed.on_cpu else ""
    say(f"{name}: {fused}{nodes}{copies}{left}", console)


# Most groups of nodes with estimated times that `explain --provider` prints.
_MOST_CLAIMED = 5


def print_forecast(found: Forecast, console: Console) -> None:
    """Prints the predicted placement in one line, then the nodes that the provider does not run, with reasons."""
    from graphopt.placement.forecast import NO_PROVIDER

    say(f"[bold]{plain(found.answer())}[/]", console)
    for note in found.notes:
        say(f"[bold]{plain(note)}[/]", console)
    words = {NO_PROVIDER: "nowhere", "cpu": "CPU"}
    for group in found.groups():
        names = ", ".join(group.names[:3]) + (", .." if len(group.names) > 3 else "")
        where = words.get(group.provider, group.provider)
        say(
            f"{where:>8} {len(group.names):4} {plain(group.op)}: {plain(group.reason)}: {plain(names)}",
            console,
            indent=14,
        )
    for claimed in found.claimed[:_MOST_CLAIMED]:
        times = f"an estimated {milliseconds(claimed.device * 1e3)} ms on the device with copies"
        times += f", {milliseconds(claimed.cpu * 1e3)} ms on the CPU" if claimed.cpu is not None else ""
        say(f"{found.provider:>8} {count(claimed.nodes, 'adjacent node')}: {times}", console, indent=14)
    if len(found.claimed) > _MOST_CLAIMED:
        say(f"{found.provider:>8} {len(found.claimed) - _MOST_CLAIMED} smaller groups (--json)", console, indent=14)
    say(f"[dim]from {plain(found.source)}[/]", console)


def print_account(found: Account, console: Console) -> None:
    """Prints the account of a model, groups with the largest potential gain first."""
    say(f"[bold]{account_answer(found)}[/]", console)
    sizes = ", ".join(f"{s}={n}" for s, n in found.sizes.items())
    unknown = f"; {count(found.unknown, 'node')} of unknown size" if found.unknown else ""
    at = f" at {sizes}" if sizes else ""
    adds = f"{amount(found.multiply_adds)} multiply-adds"
    say(plain(f"{adds}, {size(found.bytes)} read and written{at}{unknown}"), console)
    say("[dim]columns: share of multiply-adds, share of bytes, nodes and their result[/]", console)
    for status in Status:
        members = [g for g in found.groups if g.first.status == status]
        if not members:
            continue
        share, byte_share = (sum(getattr(g, a) for g in members) for a in ("share", "byte_share"))
        console.print()
        say(f"[bold]{status.value}[/] ({share:.0%} of multiply-adds, {byte_share:.0%} of bytes)", console)
        shown = members if status in NOT_REWRITTEN else [g for g in members if g.cost >= LEAST_SHARE]
        for group in shown:
            _print_group(group, console)
        if rest := members[len(shown) :]:
            say(f"[dim]   and {count(len(rest), 'group')} below {LEAST_SHARE:.0%} each (--json lists all)[/]", console)
    if found.elsewhere:
        console.print()
        say("[bold]refused at nodes that passes created and removed again[/]", console)
        for remark in found.elsewhere:
            say(f"{_refusal(remark)} ({', '.join(plain(n) for n in remark.nodes)})", console)
    _print_codes([*found.elsewhere, *(r for g in found.groups for r in g.first.remarks)], console)


def account_answer(found: Account) -> str:
    """Returns the share of each result in one line, of multiply-adds or else of bytes."""
    parts = []
    for status, words in (
        (Status.REWRITTEN, "rewritten"),
        (Status.COULD_GAIN, "refused with a remedy"),
        (Status.NO_GAIN, "not faster"),
        (Status.REFUSED, "refused"),
        (Status.LEFT, "without a pass"),
    ):
        share, byte_share = found.share_of(status)
        shown = f"{share if found.multiply_adds else byte_share:.0%}"
        if shown != "0%":
            parts.append(f"{shown} {words}")
    return f"{'multiply-adds' if found.multiply_adds else 'bytes'}: {', '.join(parts) or 'none'}"


def _print_group(group: AccountGroup, console: Console) -> None:
    """Prints the shares and nodes of a group, and its remarks below."""
    subgraph = group.first
    into = f" -> {subgraph.into}" if subgraph.into else " -> nothing" if subgraph.status == Status.REWRITTEN else ""
    label = f"{group.share:6.1%} {group.byte_share:6.1%}  "
    say(plain(f"{subgraph.operators}{into}{group.places}: {group.where}"), console, label=label)
    by = ", ".join(dict.fromkeys(r.pass_name for r in subgraph.remarks if r.applied)) if subgraph.into else ""
    below = [f"[dim]by {by}[/]"] if by else []
    for remark in dict.fromkeys(r for r in subgraph.remarks if not r.applied):
        others = f" ({', '.join(plain(n) for n in remark.nodes[1:])})" if remark.nodes[1:] else ""
        below.append(f"{_refusal(remark, example=_differs(remark, group))}{others}")
    if subgraph.reason:
        below.append(f"[dim]{plain(subgraph.reason)}[/]")
    for line in below:
        say(line, console, label=" " * len(label))


def _differs(remark: Remark, group: AccountGroup) -> bool:
    """Returns whether another subgraph of the group has this refusal with another detail."""
    remarks = (r for subgraph in group.subgraphs for r in subgraph.remarks)
    return any((r.pass_name, r.code) == (remark.pass_name, remark.code) and r.detail != remark.detail for r in remarks)


def _refusal(remark: Remark, *, example: bool = False) -> str:
    detail = f"for example, {remark.detail}" if example and remark.code == Code.NO_GAIN.name else remark.detail
    return f"[yellow]refused[/] {remark.pass_name}: {remark.code}: {plain(detail)}"


def _print_codes(remarks: Iterable[Remark], console: Console) -> None:
    """Prints the meaning of each code in these remarks."""
    codes = dict.fromkeys(Code[r.code] for r in remarks if not r.applied)
    if not codes:
        return
    console.print()
    for code in codes:
        say(f"{code.name}: {code.meaning}; to do: {code.advice}", console)
    say(f"[dim]graphopt explain {next(iter(codes)).name} prints the page of a code[/]", console)
