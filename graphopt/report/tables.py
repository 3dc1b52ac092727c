"""Data as rich tables, for the command line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphopt.measure.bench import BenchReport, BenchRow, Profile, Timing, describe
from graphopt.measure.profiling import Placement
from graphopt.measure.tune import Tuning
from graphopt.runtime.routes import Gpu, Reason, Route
from graphopt.runtime.selftest import SelfTest
from graphopt.runtime.sessions import CPU

MAX_SITE_ROWS = 15


def visible(text: str) -> str:
    """Names come from files: control characters, those that turn the direction of text too, become visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def plain(text: str) -> str:
    """`visible`, and rich markup loses its meaning."""
    return escape(visible(text))


def size(n: int) -> str:
    amount = float(n)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def print_bench(report: BenchReport, console: Console) -> None:
    for line in report.conditions:
        console.print(plain(line), soft_wrap=True)
    if any(row.after is not None for row in report.rows):
        _print_comparison(report, console)
    else:
        _print_single(report, console)
    for knee in report.knees:
        sides = [f"{side} {knee[side]}" for side in ("before", "after") if knee[side] is not None]
        console.print(f"batch within 5 % of the best throughput: {', '.join(sides)} ({plain(knee['setting'])})")
    for profile in report.profiles:
        _print_profile(profile, console)
    for note in report.notes:
        console.print(f"[yellow]note:[/] {plain(note)}", soft_wrap=True)


def print_tuning(tuning: Tuning, console: Console) -> None:
    if tuning.sites:
        table = Table(title="measured classes of sites", title_justify="left")
        for column in ("site", "speedup", "95 % interval", ""):
            table.add_column(column, overflow="fold", justify="left" if column in ("site", "") else "right")
        for name, m in tuning.sites.items():
            said = {True: "[green]rewritten[/]", False: "[red]left[/]", None: "as estimated"}[m.pays]
            table.add_row(plain(name), f"{m.speedup:.2f}x", f"{m.low:.2f}-{m.high:.2f}", said)
        console.print(table)
    if tuning.whole_model:
        ways = ", ".join(f"by {name} {ms:.3f} ms" for name, ms in tuning.whole_model.items())
        console.print(f"whole model: {ways}; chosen: {tuning.chosen}", soft_wrap=True)
    for note in tuning.notes:
        console.print(f"[yellow]note:[/] {plain(note)}", soft_wrap=True)


def print_routes(routes: Sequence[Route], console: Console) -> None:
    """A section for each way to a GPU; devices that two ways share are described once."""
    described: set[str] = set()
    for route in routes:
        state = "[green]ready[/]" if route.ready else "[yellow]not used[/]"
        console.print(f"[bold]{plain(route.title)}[/] ({route.provider}): {state}", soft_wrap=True)
        if route.reason is not None:
            _print_reason("  ", route.reason, console)
        for note in route.notes:
            _print_reason("  note: ", note, console)
        if not route.devices or route.runtime in described:
            continue
        described.add(route.runtime)
        table = Table(show_header=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        table.add_row("runtime", plain(f"{route.version}, {route.runtime}"))
        table.add_row("device code", plain(", ".join(route.code) or "none"))
        for device in route.devices:
            table.add_row(f"GPU {device.number}", plain(_gpu_line(device)))
            if device.reason is not None:
                table.add_row("", f"[yellow]not used:[/] {plain(str(device.reason))}")
            for library in device.libraries:
                version = ", ".join(filter(None, (library.version, library.path)))
                why = "" if library.reason is None else f"[yellow]not used:[/] {plain(str(library.reason))}"
                table.add_row(f"  {plain(library.name)}", " ".join(filter(None, (plain(version), why))))
        console.print(table)


def _gpu_line(device: Gpu) -> str:
    kind = "integrated, " if device.integrated else ""
    code = f"runs the code for {device.code}" if device.code else "no code for it"
    facts = f"{device.arch} at {device.bus_id}, {kind}{size(device.memory)}, {device.compute_units} compute units"
    return f"{device.name}, {facts}, {code}"


def _print_reason(before: str, reason: Reason, console: Console) -> None:
    console.print(f"{before}{plain(reason.text)} [dim]({reason.code})[/]", soft_wrap=True)
    if reason.mend:
        console.print(f"  to mend it: {plain(reason.mend)}", soft_wrap=True)


def print_selftest(tested: SelfTest, console: Console) -> None:
    device = " ".join(dict.fromkeys(filter(None, (tested.device.name, tested.device.arch, tested.device.driver))))
    table = Table(title=f"self-test: {plain(tested.provider)} on {plain(device)}", title_justify="left")
    columns = ["kernels", "type", "names passed", "inputs", "worst error of RMS", "limit"]
    timed = any(r.milliseconds is not None for r in tested.results)
    beside_cpu = any(r.cpu_milliseconds is not None for r in tested.results)
    columns += ["ms"] * timed + ["CPU ms"] * beside_cpu
    for column in columns:
        table.add_column(column, justify="left" if column in ("kernels", "type") else "right")
    for family, dtype, results in tested.families():
        passed = [r for r in results if r.passed]
        colour = "green" if len(passed) == len(results) else "red"
        worst = max((r.error for r in passed), default=float("inf"))
        counts = f"[{colour}]{len(passed)} of {len(results)}[/]"
        inputs = str(sum(r.cases for r in results))
        cells = [family, dtype, counts, inputs, f"{worst:.1e}", f"{results[0].limit:.0e}"]
        if timed:
            cells.append(f"{sum(r.milliseconds or 0.0 for r in passed):.2f}")
        if beside_cpu:
            cells.append(f"{sum(r.cpu_milliseconds or 0.0 for r in passed):.2f}")
        table.add_row(*cells)
    console.print(table)
    for result in tested.failed:
        by = f" by {plain(result.implementation)}" if result.implementation else ""
        console.print(f"[red]failed:[/] {result.op}, {result.dtype}{by}: {plain(result.detail)}", soft_wrap=True)
    for implementation, why in dict.fromkeys((r.implementation, r.refused) for r in tested.results if r.refused):
        console.print(f"not tried here: {plain(implementation)}: {plain(why)}", soft_wrap=True)
    count = len(tested.sessions)
    colour = "red" if tested.failed_sessions else "green"
    share = f"[{colour}]{count - len(tested.failed_sessions)} of {count}[/]"
    console.print(f"sessions of mixed nodes, ours between the runtime's: {share} passed")
    for s in tested.failed_sessions:
        console.print(f"[red]failed:[/] {' '.join(s.nodes)}, {s.dtype}: {plain(s.detail)}", soft_wrap=True)


def _setting(row: BenchRow) -> str:
    s = row.setting
    provider = s.provider.removesuffix("ExecutionProvider")
    threads = f"{s.threads or 'auto'} thread" + ("" if s.threads == 1 else "s")
    sizes = (f"{name}={n}" for name, n in s.sizes.items())
    io = [] if s.provider == CPU else [f"{s.io} I/O"]
    return plain(", ".join((provider, threads, *sizes, *io)))


def _settings_table(columns: tuple[str, ...]) -> Table:
    table = Table(title="bench", title_justify="left")
    table.add_column("setting", overflow="fold")
    for column in columns:
        # "0.99-1.00" broken behind its last point would say something else.
        least = 9 if column == "speedup" else None
        table.add_column(column, justify="left" if column == "" else "right", overflow="fold", min_width=least)
    return table


def _memory(timing: Timing) -> str:
    if timing.memory is None:
        return "-"
    device = "" if timing.memory.device is None else f" + {size(timing.memory.device)} GPU"
    return size(timing.memory.host) + device


def _numbers(t: Timing) -> tuple[str, ...]:
    return f"{t.median_ms:.3f}", f"{t.spread:.0%}", f"{t.p95_ms:.3f}", f"{t.throughput:.1f}", _memory(t)


def _print_single(report: BenchReport, console: Console) -> None:
    table = _settings_table(("ms", "spread", "p95 ms", "items/s", "memory"))
    for row in report.rows:
        table.add_row(_setting(row), *_numbers(row.before))
    console.print(table)


def _print_comparison(report: BenchReport, console: Console) -> None:
    table = _settings_table(("", "ms", "spread", "p95 ms", "items/s", "memory", "speedup"))
    for row in report.rows:
        assert row.after is not None
        table.add_row(_setting(row), "before", *_numbers(row.before), f"{row.speedup:.2f}x {_verdict(row.verdict)}")
        table.add_row("", "after", *_numbers(row.after), f"{row.low:.2f}-{row.high:.2f}", end_section=True)
    console.print(table)


def _verdict(text: str) -> str:
    colour = {"faster": "green", "slower": "red"}.get(text)
    return f"[{colour}]{text}[/]" if colour else text


def _print_profile(profile: Profile, console: Console) -> None:
    groups: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for site in profile.sites:
        group = groups[site.before_ops or site.name, site.after_ops or site.name]
        group[0] += 1
        group[1] += site.before_us
        group[2] += site.after_us or 0.0
    table = Table(title=f"time by site ({plain(describe(profile.setting))})", title_justify="left")
    both = profile.after is not None
    for column in ("before", "after", "sites", "before ms", "after ms") if both else ("operator", "nodes", "ms"):
        table.add_column(
            column, overflow="fold", justify="left" if column in ("before", "after", "operator") else "right"
        )
    ordered = sorted(groups.items(), key=lambda item: -max(item[1][1:]))
    shown = [(a, b, n, x, y) for (a, b), (n, x, y) in ordered[:MAX_SITE_ROWS]]
    if ordered[MAX_SITE_ROWS:]:
        rest = [sum(column) for column in zip(*(group for _, group in ordered[MAX_SITE_ROWS:]))]
        shown.append((f"{len(ordered) - MAX_SITE_ROWS} more kinds", "", rest[0], rest[1], rest[2]))
    for a, b, n, x, y in shown:
        same = "=" if a == b else plain(b)
        cells = (plain(a), same, str(int(n)), f"{x / 1e3:.3f}", f"{y / 1e3:.3f}")
        table.add_row(*(cells if both else (cells[0], *cells[2:4])))
    console.print(table)
    _print_placement("before" if both else "placement", profile.before_placement, console)
    if profile.after_placement is not None:
        _print_placement("after", profile.after_placement, console)


def _print_placement(name: str, placed: Placement, console: Console) -> None:
    nodes = ", ".join(f"{n} nodes on {provider}" for provider, n in placed.nodes.items())
    copies = f"; {placed.copies} copies between host and device, {size(placed.copied_bytes)}" if placed.copies else ""
    left = f"; left to the CPU: {', '.join(plain(n) for n in placed.on_cpu[:5])}" if placed.on_cpu else ""
    console.print(f"{name}: {nodes}{copies}{left}", soft_wrap=True)
