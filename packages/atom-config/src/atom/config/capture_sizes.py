"""The bucket ladders: which sizes a graph is recorded for.

Decode buckets count sequences, prefill buckets and compile sizes count rows (tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atom.config.errors import ConfigError
from atom.config.whole import whole_number

CAPTURE_SIZES_NAME = "cudagraph_capture_sizes"
"""The word that stands for the capture ladder in `compile_sizes`."""

SMALLEST_PREFILL_BUCKET = 16
LARGEST_DEFAULT_PREFILL_BUCKET = 1024
STEPS_PER_OCTAVE = 4

SIZES_IN_WORDS = "a list of whole numbers of at least 1, each given once"
COMPILE_SIZES_IN_WORDS = (
    f'a list of whole numbers of at least 1 (rows) and the word "{CAPTURE_SIZES_NAME}", each given once'
)


def default_ladder(largest: int) -> list[int]:
    """The guide's pattern `[1, …, 8, 16, 32, …, largest]`, in sequences: every size to 8, then each 16th.

    Sizes above `largest` are left out, so no bucket is larger than what was asked for.
    """
    return [size for size in [*range(1, 9), *range(16, largest + 1, 16)] if size <= largest]


def ladder_within(largest: int, limit: int) -> list[int]:
    """`default_ladder(largest)` cut to `limit`, with `limit` itself as its last bucket.

    The limit is what a step can hold at most, so no step is larger than every bucket. Ascending, never
    empty, no size below 1.
    """
    return sorted({*default_ladder(min(largest, limit)), limit})


def prefill_ladder(limit: int) -> list[int]:
    """Row buckets for prefill and mixed steps, ascending: 16, then four steps an octave, up to `limit` rows.

    Four steps an octave keep padding below a quarter of the rows. The ladder ends at 1,024 rows at the
    latest: a longer forward keeps a device busy for longer than its launches take.
    """
    top = min(limit, LARGEST_DEFAULT_PREFILL_BUCKET)
    sizes = {top}
    octave = SMALLEST_PREFILL_BUCKET
    while octave < top:
        step = max(octave // STEPS_PER_OCTAVE, SMALLEST_PREFILL_BUCKET)
        sizes.update(size for size in range(octave, 2 * octave, step) if size < top)
        octave *= 2
    return sorted(sizes)


def checked_sizes(field: str, value: object, *, limit: int | None = None, limit_name: str = "") -> list[int]:
    """An explicit list of sizes, sorted ascending.

    Raises:
        ConfigError: not a list, empty, or an entry is no whole number, below 1, given twice or above `limit`.
    """
    allowed = SIZES_IN_WORDS
    if limit is not None:
        allowed = f"a list of whole numbers from 1 to {limit} ({limit_name}), each given once"
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        raise ConfigError(field, value, allowed)
    sizes = sorted(_each_whole(field, value, value, allowed))
    if len(set(sizes)) != len(sizes) or sizes[0] < 1 or (limit is not None and sizes[-1] > limit):
        raise ConfigError(field, value, allowed)
    return sizes


def checked_compile_sizes(field: str, value: object) -> list[int | str]:
    """Sizes to compile for, in rows; the word "cudagraph_capture_sizes" stands for the capture ladder.

    Raises:
        ConfigError: not a list, or an entry is another word, no whole number, below 1 or given twice.
    """
    allowed = COMPILE_SIZES_IN_WORDS
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ConfigError(field, value, allowed)
    words = [entry for entry in value if isinstance(entry, str)]
    rows = sorted(
        _each_whole(field, value, [entry for entry in value if not isinstance(entry, str)], allowed)
    )
    if any(word != CAPTURE_SIZES_NAME for word in words) or (rows and rows[0] < 1):
        raise ConfigError(field, value, allowed)
    if len(words) > 1 or len(set(rows)) != len(rows):
        raise ConfigError(field, value, allowed)
    return [*rows, *words]


def _each_whole(field: str, given: object, entries: Iterable[object], allowed: str) -> list[int]:
    numbers = [whole_number(entry) for entry in entries]
    if any(number is None for number in numbers):
        raise ConfigError(field, given, allowed)
    return [number for number in numbers if number is not None]
