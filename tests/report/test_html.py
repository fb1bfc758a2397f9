"""`report.html`: all that records hold as text, nothing else, and the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.records._accuracy import Rejected
from qdqtune.records._front import FrontPoint
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Placement
from qdqtune.records._printable import printable
from qdqtune.records._quantization import Decision, QuantizeReport
from qdqtune.records._report import FLOAT, QUANTIZED, ReportDetails, RunView
from qdqtune.records._tuning import Summary
from qdqtune.report import _html as html_module
from qdqtune.report._charts import span, ticks
from qdqtune.report._contenders import terms_in
from qdqtune.report._html import page_html
from qdqtune.report._search_charts import Candidates
from tests.report.runs import HOSTILE, SUMMARY, run_of


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(name: str) -> None:
    plain, page = Page(page_html([run_of()])), Page(page_html([run_of((name, "b", "c"))]))
    assert page.tags == plain.tags
    assert not {each for each in page.attributes if each.startswith("on")}
    assert printable(name) in "".join(page.text)


@given(st.text(min_size=1, max_size=60))
def test_any_name_leaves_the_markup_as_it_is(name: str) -> None:
    page = Page(page_html([run_of((f"x{name}", "b", "c"))]))
    assert page.tags == Page(page_html([run_of()])).tags


def test_only_our_own_style_and_script_may_run() -> None:
    html = page_html([run_of()])
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http:" not in html.replace("http-equiv", "")
    assert "https:" not in html
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "style" not in Page(html).attributes


def test_the_same_records_give_the_same_bytes_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    first = page_html([run_of()])
    monkeypatch.chdir(str(tmp_path))
    for name in ("USER", "HOME", "HOSTNAME", "TZ", "LANG"):
        monkeypatch.setenv(name, "somewhere else")
    assert page_html([run_of()]) == first
    assert os.uname().nodename not in first


def test_the_headline_has_the_speedup_its_interval_and_the_accuracy() -> None:
    text = " ".join("".join(Page(page_html([run_of()])).text).split())
    assert "2.00× as fast 10.00 ms → 5.00 ms 1.900 to 2.100" in text
    assert "30.0 dB output SQNR (error 3.2\N{NO-BREAK SPACE}%)" in "".join(
        Page(page_html([run_of()])).text
    )
    assert "onnxruntime 1.22, 1 thread" in text


def test_what_makes_a_more_accurate_model_is_a_command() -> None:
    text = "".join(Page(page_html([run_of()])).text)
    assert "qdqtune export runs/stem --candidate c0001 -o c0001.onnx" in text
    point = FrontPoint("c0001", "c.onnx", "", 6.0, 1.7, (1.6, 1.8), 37.0, candidate="c0001")
    summary = run_of().result
    assert isinstance(summary, Summary)
    front = replace(run_of(), result=replace(summary, front=(point, point)))
    text = "".join(Page(page_html([front])).text)
    assert "qdqtune export runs/stem --pareto 1 -o point1.onnx" in text
    alone = replace(run_of(), details=ReportDetails("runs/stem"))
    assert "qdqtune tune stem --min_sqnr 33" in "".join(Page(page_html([alone])).text)


def test_commands_quote_the_folder() -> None:
    text = "".join(Page(page_html([replace(run_of(), folder="my runs; $(rm it)")])).text)
    assert "qdqtune export 'my runs; $(rm it)' --candidate c0001" in text
    assert "qdqtune export 'my runs; $(rm it)' --list" in text
    assert "qdqtune bench 'my runs; $(rm it)/optimized_final.onnx'" in text


def test_the_command_that_checks_the_result_names_its_data() -> None:
    recorded = {"--calibration_data": "my images", "--image_mean": "0.5", "--evaluate": "evil:f"}
    inputs = {"source": "data", "digest": "0", "ranges": {}}
    for flags, shown in (
        ({"flags": recorded}, "--calibration_data 'my images' --image_mean 0.5"),
        ({}, "--calibration_data SOURCE"),
    ):
        summary = replace(SUMMARY, error_inputs={**inputs, **flags})
        text = "".join(Page(page_html([RunView(summary, "run")])).text)
        assert f"qdqtune verify run/optimized_final.onnx --threads 1 {shown}" in text
        assert "evil" not in text
    on_random = replace(SUMMARY, error_inputs={**inputs, "source": "random"})
    text = "".join(Page(page_html([RunView(on_random, "run")])).text)
    assert "qdqtune verify run/optimized_final.onnx --threads 1" in text
    assert "--threads 1 --calibration_data" not in text


def test_names_of_one_candidate_are_one_row() -> None:
    run = run_of()
    assert run.details is not None
    ids = {"everything": "c0001", "rules": "c0001", "tuned": "c0000"}
    html = page_html([replace(run, details=replace(run.details, candidates=ids))])
    rows = re.findall(r'<span class="struck">(.*?)</span>', html)
    assert rows == ["float", "tuned", "best blanket: everything = rules"]


def test_what_is_slower_than_float_is_not_recommended() -> None:
    run = run_of()
    slow = tuple(
        replace(trial, gain=-0.1) if trial.candidate == "c0001" else trial for trial in run.trials
    )
    front = page_html([replace(run, trials=slow)]).partition("no other beats")[2]
    assert 'id="c0000"' in front.partition("</table>")[0]
    assert 'id="c0001"' not in front.partition("</table>")[0]
    assert "A more accurate model, c0001" not in "".join(Page(front).text)


@pytest.mark.parametrize(("dynamic", "shown"), [(0, "float"), (2, "dynamic")])
def test_a_pattern_without_pairs_may_be_dynamic(dynamic: int, shown: str) -> None:
    run = run_of()
    assert run.details is not None
    (row,) = run.details.patterns
    schemes = (replace(row.schemes[0], points=()),)
    details = replace(run.details, patterns=(replace(row, schemes=schemes, dynamic=dynamic),))
    html = page_html([replace(run, details=details)]).partition("<h2>Patterns</h2>")[2]
    assert re.findall(r">(float|dynamic)<", html.partition("</section>")[0]) == [shown, shown]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"calibration": "random"}, "Calibrated on random inputs"),
        ({"contention": 0.4}, "The machine was busy: the engine waited for a core 40 %"),
        ({"openings": 1}, "no time to open the files in several processes"),
        ({"output_sqnr_db": 15.5}, "by less than 1 dB"),
        ({"output_sqnr_db": None}, "accuracy of the result is unknown"),
        (
            {"conditions": {"max_latency_ms": 0.25}},
            "No model reaches --max_latency 0.25 ms: the fastest takes 5 ms.",
        ),
        ({"stopped": "interrupted"}, "The search was interrupted"),
        ({"stopped": "max_benchmarks"}, "ended at --max_benchmarks: too few"),
        ({"lost_to_accuracy": "the stem"}, "not accurate enough: the stem"),
    ],
)
def test_what_is_doubtful_is_noted_at_the_top(changes: dict[str, object], note: str) -> None:
    sure = page_html([RunView(SUMMARY, "run", details=ReportDetails())])
    doubtful = page_html([RunView(replace(SUMMARY, **changes), "run", details=ReportDetails())])  # type: ignore[arg-type]
    assert 'class="note"' not in sure
    assert note in re.sub(r"\s+", " ", "".join(Page(doubtful).text))


def test_a_model_that_was_kept_says_why() -> None:
    kept = replace(SUMMARY, kept_float=True, reason="the gain is too small", speedup=1.0)
    text = "".join(Page(page_html([RunView(kept, "run")])).text)
    assert "Kept as given" in text
    assert "The gain is too small." in text
    assert "as fast" not in text


def test_failures_and_inaccurate_models_are_crossed_out() -> None:
    run = run_of()
    assert run.details is not None
    details = replace(
        run.details, candidates={**run.details.candidates, "broken": "c0002"},
        sqnr_db={"c0001": 3.0},
    )  # fmt: skip
    html = page_html([replace(run, details=details)])
    rows = re.findall(r'<span class="struck">(.*?)</span>.*?</tr>', html, re.DOTALL)
    assert {"rules", "broken"} <= set(rows)
    for name, why in (("rules", "not accurate enough: below 15 dB"), ("broken", "refused stem")):
        row = html.partition(f'<span class="struck">{name}</span>')[2].partition("</tr>")[0]
        assert f'<span class="why">{why}</span>' in row


def test_several_runs_share_a_page_without_sharing_ids() -> None:
    html = page_html([run_of(), run_of(("other", "b", "c"))])
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert "2 runs side by side" in html
    for prefix in ("r0-", "r1-"):
        assert f'id="{prefix}graph"' in html


def test_a_large_report_stays_below_four_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(page_html([run_of(nodes=2000)]).encode()) <= 4_000_000
    monkeypatch.setattr(html_module, "_MOST_BYTES", 200_000)
    html = page_html([run_of(nodes=300), run_of(nodes=2000)])
    assert len(html.encode()) <= 200_000
    assert 'id="r0-graph"' in html
    assert 'id="r1-graph"' not in html
    assert "The graph of 2002 nodes is left out" in html


def test_long_lists_are_cut_and_say_so() -> None:
    run = run_of()
    assert run.details is not None
    trials = tuple(replace(run.trials[0], candidate=f"c{n:04}") for n in range(1000))
    details = replace(
        run.details, patterns=run.details.patterns * 1000, layers=run.details.layers * 1000,
        tensors=run.details.tensors * 1000,
    )  # fmt: skip
    html = page_html([replace(run, details=details, trials=trials)])
    assert len(html.encode()) < 2_000_000
    for said in ("Only the fastest 300 of these", "Only the first 300", "The worst 300"):
        assert said in html


def test_the_result_has_the_accuracy_of_its_own_ranges() -> None:
    other = replace(run_of(), result=replace(SUMMARY, output_sqnr_db=44.0))
    row = page_html([other]).partition('id="c0000"')[2].partition("</tr>")[0]
    assert "44.0 dB" in row
    assert "optimized_final.onnx" in row


def test_one_shot_quantization_has_a_page_too() -> None:
    report = QuantizeReport(
        engine="onnxruntime", dialect="onnxruntime", quant_type="int8",
        decisions=(Decision("stem", "Conv", True, "weighted", "it has weights"),),
        placement=Placement(), calibration="random", calibrated_on="8 samples", baseline_ms=4.0,
        final_ms=2.0, comparison=Comparison(2.0, 1.9, 2.1, 0.99, 10, contention=0.3),
        sqnr_db={"y": 22.0},
    )  # fmt: skip
    text = " ".join("".join(Page(page_html([RunView(report, "net.onnx")])).text).split())
    assert "2.00× as fast 4.00 ms → 2.00 ms" in text
    assert "The machine was busy: the engine waited for a core 30 %" in text
    assert "Calibrated on random inputs" in text
    kept = replace(report, kept_float=True, reason="it is not faster")
    assert "It is not faster" in "".join(Page(page_html([RunView(kept, "net.onnx")])).text)


def test_an_empty_run_has_a_page() -> None:
    nothing = replace(SUMMARY, seeds={}, blanket=None, benchmarks=0)
    assert "How it compares" in page_html([RunView(nothing, "run")])


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_inside_and_evenly_spaced(low: float, width: float) -> None:
    found = ticks(low, low + width)
    margin = 1e-6 * (abs(low) + width)
    assert all(low - margin <= each <= low + width + margin for each in found)
    assert 1 <= len(found) <= 12


@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_a_span_covers_its_values(values: list[float]) -> None:
    low, high = span(values)
    assert low < high
    assert all(low <= each <= high for each in values)


def text_of(run: RunView) -> str:
    return " ".join("".join(Page(page_html([run])).text).split())


def summary_of(**figures: object) -> RunView:
    run = run_of()
    return replace(run, result=replace(run.result, **figures))  # type: ignore[type-var]


def test_layers_that_do_not_add_up_are_said_to_be_doubtful() -> None:
    """Run's layers sum to 3 ms before, and to 2.75 ms in the result."""
    fits = text_of(summary_of(baseline_ms=2.9, final_ms=2.5))
    assert "Most was gained in stem (1.000 ms)." in fits
    assert "doubtful" not in fits
    disturbed = text_of(summary_of(baseline_ms=2.9, final_ms=0.55))
    assert "they sum to 5.0 times the latency of the result." in disturbed
    assert "Most was gained" not in disturbed


def test_what_a_float_layer_gained_is_said_to_be_noise() -> None:
    run = summary_of(baseline_ms=4.0, final_ms=2.0)
    assert run.details is not None
    layer = replace(run.details.layers[0], nodes=("body",))
    text = text_of(replace(run, details=replace(run.details, layers=(layer,) * 2)))
    assert "body (1.000 ms; it is float: noise, or another layout)" in text


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"source": "data", "samples": 8}, "(error 3.2\xa0%), on 8 of the 12 calibration samples"),
        ({"source": "data", "samples": 12}, "(error 3.2\xa0%), on the 12 calibration samples"),
        ({"source": "data"}, "(error 3.2\xa0%), on calibration samples"),
        ({"source": "random", "samples": 2}, "(error 3.2\xa0%), on 2 random inputs"),
    ],
)
def test_the_accuracy_is_told_with_the_inputs_that_it_was_measured_on(
    inputs: dict[str, object], told: str
) -> None:
    run = summary_of(error_inputs=inputs, calibration_samples=12)
    assert told.replace("\xa0", " ") in text_of(run)


def test_few_samples_and_random_ones_are_warned_of() -> None:
    few = "Only 12 calibration samples: a few hundred are advised"
    assert few in text_of(summary_of(calibration_samples=12))
    assert "a few hundred" not in text_of(summary_of(calibration_samples=300))
    assert "a few hundred" not in text_of(summary_of(calibration_samples=12, calibration="random"))
    on_random = summary_of(calibration="none", error_inputs={"source": "random"})
    assert "measured on random inputs; on real data it is unknown" in text_of(on_random)


def trials_at(*times_s: float) -> RunView:
    run = run_of()
    return replace(run, trials=tuple(replace(run.trials[0], at_s=each) for each in times_s))


def test_a_chart_over_time_begins_at_0_and_needs_more_than_a_few_moments() -> None:
    charts = Candidates(trials_at(*range(100, 110)), "")
    assert charts.over_time is not None
    assert ">0</text>" in charts.over_time
    assert Candidates(trials_at(*[30.627] * 6, *[33.57] * 3), "").over_time is None
    assert "over seconds" not in page_html([trials_at(30.0, 30.1, 33.0)])


@pytest.mark.parametrize("gain", [-0.5, -0.01, 0.0, 0.002, 0.7])
def test_labels_of_lines_cover_no_point_and_no_other_label(gain: float) -> None:
    run = run_of()
    trials = tuple(replace(run.trials[0], at_s=n, gain=gain) for n in range(1, 9))
    chart = Candidates(replace(run, trials=trials), "").over_time
    assert chart is not None
    labels = re.findall(r'<text class="direct .*?" x="(.*?)" y="(.*?)">(.*?)</text>', chart)
    assert {text.split()[0] for _, _, text in labels} == {"float", "best"}
    (x, first, _), (_, second, _) = labels
    assert float(x) > max(float(each) for each in re.findall(r'cx="(.*?)"', chart)) + 3.5
    assert abs(float(first) - float(second)) >= 18.0  # the size of the font on a phone


def test_the_best_so_far_is_accurate_enough() -> None:
    run = run_of()
    assert run.details is not None
    assert "best 1.99×" in text_of(run)
    details = replace(run.details, sqnr_db={"c0000": 3.0})
    text = text_of(replace(run, details=details, result=replace(SUMMARY, output_sqnr_db=None)))
    assert "best 1.49×" in text
    assert "best 1.99×" not in text
    assert "c0000 (seeds): 1.994×, not accurate enough" in text
    rejected = [Rejected(name, 4, None, 0.5, "metric") for name in ("everything", "rules")]
    assert re.search(r"best \d", text_of(summary_of(rejected=tuple(rejected)))) is None


def test_an_op_of_which_only_inputs_are_quantized_is_said_to_be_float() -> None:
    run, note = run_of(), "float: only values that it reads are quantized"
    assert run.details is not None
    (row,) = run.details.tensors
    for form in ("", QUANTIZED, FLOAT):
        details = replace(run.details, tensors=(replace(row, form=form),))
        assert (note in text_of(replace(run, details=details))) == (form == FLOAT)


def test_a_candidate_below_the_limit_is_marked_and_the_limit_is_explained() -> None:
    run = summary_of(float_sqnr_db=25.0, output_sqnr_db=30.0)
    assert run.details is not None
    run = replace(run, details=replace(run.details, sqnr_db={"c0001": 14.3}))
    text = text_of(run)
    assert "14.3 dBbelow the limit" in text
    assert text.count("below the limit") == 1
    assert "limit 14.6 dB" in text
    assert "The limit is 14.6 dB instead of --min_sqnr 15" in text
    assert "instead of --min_sqnr" not in text_of(run_of())


def test_the_words_in_names_are_explained_where_they_stand() -> None:
    text = text_of(run_of())
    assert "A blanket follows one rule for the whole model" in text
    assert "Rules are the placement rules for the engine." in text
    assert "sums unfused" not in text
    assert terms_in(["float", "raw"]).startswith(" Raw is put together")


def test_schemes_have_the_speedups_of_the_search() -> None:
    run = run_of()
    assert run.details is not None
    (row,) = run.details.patterns
    slower = replace(row.schemes[0], candidate="c0009", latency_ms=10.0, chosen=False)
    row = replace(row, schemes=(*row.schemes, slower))
    text = text_of(replace(run, details=replace(run.details, patterns=(row,) * 13)))
    # The first was measured 1.994 times as fast; of the other, only the latency is known.
    assert "1.994×c0000" in text
    assert "0.997×c0009" in text
    assert "1 more pattern" in text
    assert "more patterns" not in text
