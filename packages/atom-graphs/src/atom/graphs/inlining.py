"""Which regions a recording without breaks may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.graphs.errors import RegionRefusedError

if TYPE_CHECKING:
    from atom.graphs.region import Region


def check_inline(region: Region) -> None:
    """Raises `RegionRefusedError` unless a request bucket fixes the region's launches."""
    if not region.bucket_fixed:
        raise RegionRefusedError(
            f"region {region.name} plans its launches on the host, so a request graph would freeze this "
            "step's "
            "plan: declare it bucket_fixed if a request bucket fixes its launches, or use TR_HYBRID"
        )
