"""`report.html`: one file that shows one run, or several side by side, from their records."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jinja2
from markupsafe import Markup

from qdqtune.records._printable import printable
from qdqtune.records._report import (
    COMPUTES,
    CONVERTS,
    DYNAMIC,
    FLOAT,
    QUANTIZED,
    UNFUSED,
    GraphView,
    LayerChange,
    ReportDetails,
    RunView,
)
from qdqtune.records._tuning import Summary
from qdqtune.report._charts import dumbbell, interval_bar, span, twin_bars
from qdqtune.report._contenders import terms_in
from qdqtune.report._formatting import duration
from qdqtune.report._graph_svg import CLASSES, graph_data, graph_svg
from qdqtune.report._page_facts import facts_of
from qdqtune.report._search_charts import Candidates

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_ROWS = 12
_WORST = 10
# Longer lists are cut: the records have the rest.
_LONGEST = 300
_POINTS = 12
# By how much the sum of a profile's layers may differ from the model's latency.
_DISTURBED = 0.3
# Larger pages are slow to open; graphs are left out, the last first.
_MOST_BYTES = 4_000_000
# A graph of more nodes, or edges and their bends, is not drawn to find that out.
_MOST_DRAWN = 200_000


def page_html(runs: Sequence[RunView]) -> str:
    """Write the page of some runs; the same records give the same bytes.

    Args:
        runs: The runs; several are compared at the top of the page.
    """
    drawn = {number for number, run in enumerate(runs) if _can_be_drawn(run)}
    while True:
        html = _page(runs, drawn)
        if len(html.encode()) <= _MOST_BYTES or not drawn:
            return html
        drawn.remove(max(drawn))


def _can_be_drawn(run: RunView) -> bool:
    graph = run.details.graph if run.details is not None else None
    if graph is None:
        return False
    return len(graph.nodes) + sum(1 + len(edge.bends) for edge in graph.edges) <= _MOST_DRAWN


def _page(runs: Sequence[RunView], drawn: Set[int]) -> str:
    style, script = _part("style.css"), _part("script.js")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bar=interval_bar,
        twins=twin_bars,
        dumbbell=dumbbell,
        duration=duration,
        ops=_ops,
        signed=_signed,
        more=_more,
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [
        _section(run, f"r{number}-" if len(runs) > 1 else "", is_drawn=number in drawn)
        for number, run in enumerate(runs)
    ]
    most_ms = max((each["facts"].baseline_ms or 0.0 for each in sections), default=0.0)
    return environment.from_string(_part("page.html")).render(
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704
        runs=sections,
        most_ms=most_ms,
    )


def _part(name: str) -> str:
    folder = importlib.resources.files("qdqtune.report") / "templates"
    return (folder / name).read_text("utf-8").strip()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _safe(value: Any) -> Any:
    """Replace characters that a browser would act on or hide; markup of our own stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _section(run: RunView, prefix: str, *, is_drawn: bool) -> dict[str, Any]:
    """Return everything that the template shows of a run."""
    facts, details, summary = facts_of(run), run.details or ReportDetails(), run.result
    graph = details.graph if is_drawn else None
    candidates = Candidates(run, prefix)
    baseline_ms = facts.baseline_ms or 0.0
    slowest = [baseline_ms / each.low for each in facts.contenders if each.speedup and each.low > 0]
    node_of = {node.name: n for n, node in enumerate(graph.nodes)} if graph is not None else {}
    section = {
        "run": run,
        "terms": terms_in(each.name for each in facts.contenders),
        "prefix": prefix,
        "facts": facts,
        "details": details,
        "scale_ms": min(max(slowest, default=0.0), 3.0 * baseline_ms),
        "candidates": candidates,
        "speedups": _speedups(candidates, details),
        "node_of": node_of,
        "now": _forms_now(details.graph),
        "batches": (),
        **_layers_of(details.layers),
        "disturbed": _disturbed(details.layers, baseline_ms, summary.final_ms or 0.0),
        "worst": [row for row in details.tensors if row.sqnr_db is not None][:_WORST],
        "errors": [row for row in details.tensors if row.sqnr_db is not None][:_LONGEST],
        "longest": _LONGEST,
        "points": _POINTS,
        "left_out": _left_out(details.graph, is_drawn=is_drawn),
        "graph": None,
        "data": None,
    }
    if isinstance(summary, Summary) and summary.batches:
        known = [each for each in summary.batches if each.measured is not None]
        section["batches"] = summary.batches
        both = [v or 1.0 for b in known for v in (b.predicted, b.measured)]
        section["batch_ends"] = span(both, 1.0)
    if graph is not None:
        section |= {
            "graph": graph_svg(graph, prefix),
            "data": graph_data(graph, details.layers),
            "legend": _legend(graph),
            "borders": any(edge.border for edge in graph.edges),
            "floats": _why_float(graph),
            "ends": _ends(graph),
            "areas": graph.areas[0].rpartition(" ")[0] if graph.areas else "",
        }
    return section


def _speedups(candidates: Candidates, details: ReportDetails) -> dict[str, float]:
    """Return the speedups of candidates by id, and of the float model where a pattern has its."""
    found = {row.id: row.speedup for row in candidates.rows if row.speedup is not None}
    for row in details.patterns:
        kept = next((each for each in row.schemes if each.chosen), None)
        if kept is None or not kept.latency_ms or kept.candidate not in found:
            continue
        for each in row.schemes:
            if each.latency_ms:
                speedup = found[kept.candidate] * kept.latency_ms / each.latency_ms
                found.setdefault(each.candidate, speedup)
    return found


def _layers_of(layers: Sequence[LayerChange]) -> dict[str, Any]:
    """Return the rows of the layers' table: what matters first, the rest to unfold."""
    computing = [row for row in layers if row.kind == COMPUTES]
    other = {
        kind: [row for row in layers if row.kind == kind]
        for kind in dict.fromkeys(row.kind for row in layers)
        if kind != COMPUTES
    }
    is_compared = any(row.after_ms is not None for row in layers)
    first = computing[:_ROWS]
    # Less than a thousandth of the whole is noise.
    noise_ms = 1e-3 * sum(row.before_ms for row in layers)
    slower = [row for row in computing[_ROWS:] if row.gain_ms < -noise_ms][-_ROWS // 2 :]
    rest = computing[_ROWS : len(computing) - len(slower)]
    return {
        "compared": is_compared,
        "first": first,
        "slower": slower,
        "rest": rest,
        "gained": [row for row in computing if row.gain_ms > 0.0 and row.nodes][:3],
        "conversions": [
            {
                "name": "conversions between types" if kind == CONVERTS else "changes of layout",
                "count": len(rows),
                "before": sum(row.before_ms for row in rows),
                "after": sum(row.after_ms or 0.0 for row in rows),
            }
            for kind, rows in other.items()
        ],
        "most_layer_ms": max(
            (max(row.before_ms, row.after_ms or 0.0) for row in computing), default=0.0
        ),
        "total_before": sum(row.before_ms for row in layers),
        "total_after": sum(row.after_ms or 0.0 for row in layers),
    }


def _disturbed(layers: Sequence[LayerChange], baseline_ms: float, final_ms: float) -> str:
    """Say that a profile's layers don't add up to the models' latencies; empty if they do."""
    pairs = (
        ("the model as given", sum(row.before_ms for row in layers), baseline_ms),
        ("the result", sum(row.after_ms or 0.0 for row in layers), final_ms),
    )
    off = [
        f"{total / ms:.1f} times the latency of {which}"
        for which, total, ms in pairs
        if total and ms and abs(total / ms - 1.0) > _DISTURBED
    ]
    if not off:
        return ""
    return (
        f"These times are doubtful: they sum to {' and '.join(off)}. Other work disturbed the "
        "profile, or the profiler slows these layers down."
    )


def _left_out(graph: GraphView | None, *, is_drawn: bool) -> str:
    """Say what is not drawn of a graph; empty if all of it is."""
    if graph is None:
        return ""
    count = sum(node.nodes for node in graph.nodes)
    if not is_drawn:
        return f"The graph of {count} nodes is left out: it would make this file too large."
    if count == len(graph.nodes):
        return ""
    return (
        f"The graph has {count} nodes, too many to draw each: {len(graph.nodes)} boxes stand for "
        "them, and what is said of a box holds for its first node."
    )


def _forms_now(graph: GraphView | None) -> Mapping[str, str]:
    """Return the form of each node by name; of nodes that are not known, it is float."""
    nodes = graph.nodes if graph is not None else ()
    unfused = {node.name: FLOAT if node.form == UNFUSED else node.form for node in nodes}
    return defaultdict(lambda: FLOAT, unfused)


def _signed(value: float) -> str:
    """Return a number with a sign that is as wide as a digit."""
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def _more(count: int, thing: str) -> str:
    return f"{count} more {thing}{'s' * (count != 1)}"


def _ops(op_types: Sequence[str]) -> str:
    """Return op types in a few words: those that repeat are counted."""
    counts = Counter(op_types)
    named = [f"{op} ×{count}" if count > 1 else op for op, count in counts.items()]
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return " · ".join(named[:4]) + more


def _legend(graph: GraphView) -> list[tuple[str, str, int]]:
    counts = Counter(node.form for node in graph.nodes)
    return [(CLASSES[form], form, counts[form]) for form in CLASSES if form and counts[form]]


def _why_float(graph: GraphView) -> list[tuple[str, int, Counter[str], str]]:
    """Return the reasons for ops that stay float, with their numbers by op type."""
    found: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        if node.form == FLOAT and node.reason >= 0:
            found.setdefault(node.reason, []).append(number)
    rows = []
    for reason, numbers in sorted(found.items(), key=lambda item: -len(item[1])):
        ops = Counter(graph.nodes[number].op_type for number in numbers)
        rows.append((graph.reasons[reason], len(numbers), ops, graph.nodes[numbers[0]].name))
    return rows


def _ends(graph: GraphView) -> list[tuple[str, str, str, str]]:
    """Return the first and the last op with weights: people ask about these."""
    weighted = [node for node in graph.nodes if node.op_type in _WEIGHTED]
    if not weighted:
        return []
    ends = {"first": weighted[0], "last": weighted[-1]}
    names = {QUANTIZED: "quantized", DYNAMIC: "dynamic"}
    return [
        (
            which,
            node.name,
            names.get(node.form, node.form),
            graph.reasons[node.reason] if node.reason >= 0 else "",
        )
        for which, node in ends.items()
    ]
