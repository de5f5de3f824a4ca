"""The digest behind every `compute_hash`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

FORMAT = "atom.config/1"
"""Part of each digest; changes when the meaning of equal material changes."""


def stable_hash(material: Any) -> str:
    """64 hex digits over JSON values; equal in every process, whatever the order of a mapping's keys."""
    text = json.dumps([FORMAT, material], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
