"""The autotuner that finds its regions itself."""

from __future__ import annotations

from qdqtune.autotune.regions.region import Region, RegionType, walk
from qdqtune.autotune.regions.region_search import CombinedRegionSearch
from qdqtune.autotune.session.autotuner_base import QDQAutotunerBase


class QDQAutotuner(QDQAutotunerBase):
    """Tunes the regions that `CombinedRegionSearch` finds: leaves first, then what they make up."""

    def _find_regions(self, graph_changed: bool) -> list[Region]:  # noqa: ARG002
        self.regions = []
        self._search_regions()
        return self.regions

    def _search_regions(self) -> None:
        """Set `regions`; a subclass may find others."""
        found = CombinedRegionSearch(
            self.graph,
            self.config.maximum_sequence_region_size,
            self.config.minimum_topdown_search_size,
        ).search_regions()
        self.regions = sorted(walk(found), key=lambda region: region.type is not RegionType.LEAF)
