"""What was measured, as one small text per scheme: the logs that the autotuning guides show."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from qdqtune.autotune.patterns.pattern_views import PatternView
from qdqtune.engines.build_log import BuildLog
from qdqtune.graph.atomic_files import replacing
from qdqtune.records.errors import OutputError
from qdqtune.records.measurement import EngineInfo
from qdqtune.records.tuning import Summary
from qdqtune.workflows.tuning.folder import BASELINE, CANDIDATES, ENGINE_LOG, FINAL, FLOAT_CANDIDATE
from qdqtune.workflows.tuning.snapshot import TriedScheme

_logger = logging.getLogger(__name__)

_SCHEMES = "region_{}_scheme_{}.log"


class SchemeLogs:
    """Writes `baseline.log`, `final.log` and `region_<n>_scheme_<m>.log` into a run's logs.

    The numbers are those of the region, as `region_inspect` of the float model that is tuned and
    the names in `region_models` have them, and of the scheme in the state file. Regions of one
    pattern share its schemes, which go by the first of them. A log that can't be written spoils no
    run: it is warned of.

    Args:
        folder: The folder of logs.
        info: What measures.
    """

    def __init__(self, folder: Path, info: EngineInfo) -> None:
        self._folder = folder
        self._info = info
        self._built = BuildLog(folder / ENGINE_LOG)
        self._written: dict[str, str] = {}
        self._is_broken = False

    def write_baseline(self, latency_ms: float) -> None:
        """Write what became of the model as given."""
        self._write({"baseline.log": [f"baseline: {latency_ms:.6g} ms", *self._about(BASELINE)]})

    def write_final(self, summary: Summary) -> None:
        """Write what became of the model that is handed over."""
        verdict = f"final: {summary.final_ms:.6g} ms ({summary.speedup:.3f}x speedup)"
        lines = [verdict, *self._about(FINAL)]
        if summary.kept_float:
            lines = [verdict, f"the model as given is kept: {summary.reason}", *self._about(FINAL)]
        self._write({"final.log": lines})

    def write_schemes(
        self, views: Sequence[PatternView], tried: Sequence[Sequence[TriedScheme]]
    ) -> None:
        """Write the logs of schemes that have changed, and remove those of schemes that are gone.

        Args:
            views: The model's patterns.
            tried: What was tried of each.
        """
        texts = {
            _SCHEMES.format(view.first.id, number): self._scheme(view, each)
            for view, schemes in zip(views, tried, strict=True)
            if view.edges
            for number, each in enumerate(schemes)
        }
        self._write(texts)
        for file in self._folder.glob(_SCHEMES.format("*", "*")):
            if file.name not in texts:
                file.unlink(missing_ok=True)

    def _scheme(self, view: PatternView, tried: TriedScheme) -> list[str]:
        scheme, candidate = tried.scheme, tried.candidate
        points = [str(point) for point in scheme.points()] or ["none: left float"]
        model = FINAL if candidate.placement else BASELINE
        if candidate.name:
            model = f"{CANDIDATES}/{candidate.name}.onnx"
        lines = [
            f"region: {view.first.id} (level {view.first.level}) of "
            f"{CANDIDATES}/{FLOAT_CANDIDATE}.onnx, the first of {view.regions} with the pattern",
            f"pattern: {view.pattern.signature}",
            f"scheme: {scheme.hash}",
            *(f"point: {point}" for point in points),
        ]
        lines.append(f"measured in: {model}")
        if scheme.error:
            lines += ["latency of the whole model: failed", candidate.failure]
        else:
            lines.append(f"latency of the whole model: {scheme.latency_ms:.6g} ms")
        return [*lines, *self._about(Path(model).name)]

    def _about(self, model: str) -> list[str]:
        """What the engine said when it built a model, or where that is."""
        info = self._info
        lines = [f"engine: {info.name} {info.version} on {info.device} ({info.isa})"]
        own = self._folder / info.name / f"{Path(model).stem}.log"
        if own.exists():
            return [*lines, f"build log: {info.name}/{own.name}"]
        said = self._built.about(model) or ["nothing"]
        return [*lines, f"build log of {model}:", *(f"  {line}" for line in said)]

    def _write(self, texts: dict[str, list[str]]) -> None:
        try:
            for name, lines in texts.items():
                text = "\n".join(lines) + "\n"
                if self._written.get(name) != text:
                    with replacing(self._folder / name, durable=False) as file:
                        file.write(text.encode())
                    self._written[name] = text
        except OutputError as error:
            if not self._is_broken:
                _logger.warning("the logs of the schemes can't be written: %s", error.what)
            self._is_broken = True
