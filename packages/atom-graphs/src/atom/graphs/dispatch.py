"""What a step replays: decided in one place, from the phase it is told and the buckets there are."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atom.graphs.errors import DispatchError
from atom.graphs.microbatch import decode_bucket_splits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from atom.config import CUDAGraphMode

Kind = Literal["eager", "token", "request"]


@dataclass(frozen=True)
class ForwardMode:
    """The settled form of one step; `run_model` obeys it and asks nothing further."""

    kind: Kind
    """`"request"` replays a request graph, `"token"` the model's own token graph, `"eager"` neither."""
    running_bs: int
    """Sequences the step runs, padding included."""
    running_tokens: int
    """Rows the step runs, padding included; under data parallelism the same on every rank."""
    token_graph: bool
    """Whether the model replays its token graph; `set_forward_context` makes it `tr_graph = "replay"`."""
    ubatch_split_bs: int | None
    """The bucket whose recorded two-microbatch split the metadata must follow; None: no recorded split."""
    reason: str
    """Why this and not a graph (or a better one), in words for the run's table."""

    @classmethod
    def decide(
        cls,
        *,
        mode: CUDAGraphMode,
        is_prefill: bool,
        batch_size: int,
        num_tokens: int,
        max_seqlen_q: int,
        enforce_eager: bool,
        request_sizes: Collection[int],
        token_sizes: Collection[int],
        dp_num_tokens: Sequence[int] | None = None,
        dp_uniform: bool | None = None,
        enable_tbo: Literal["none", "prefill", "all"] = "none",
    ) -> ForwardMode:
        """Settles one step.

        Args:
            mode: The run's graph mode.
            is_prefill: The phase, told and never inferred; a mixed step counts as prefill. Under data
                parallelism the group's: true on every rank when any rank prefills.
            batch_size: Live sequences; 0 on an idle rank.
            num_tokens: Live rows.
            max_seqlen_q: Query rows of the longest sequence.
            enforce_eager: Run without graphs whatever was recorded.
            request_sizes: `running_bs` of the request graphs recorded for this `max_seqlen_q`.
            token_sizes: Token buckets recorded for this phase.
            dp_num_tokens: Live rows of every rank. Given, everything follows from values all ranks share, so
                that each of them settles on the same bucket, an idle one included.
            dp_uniform: Whether every rank's decode is uniform; None takes this rank's own for all, which is
                right wherever decode is uniform by construction.
            enable_tbo: `"all"` splits decode into two microbatches too.

        Raises:
            DispatchError: the numbers describe no step.
        """
        _check(batch_size, num_tokens, max_seqlen_q, dp_num_tokens)
        rows = num_tokens if dp_num_tokens is None else max(dp_num_tokens)
        uniform = num_tokens == batch_size * max_seqlen_q if dp_uniform is None else dp_uniform
        decode = not is_prefill
        # The batch all ranks count with: a rank's own sequence count says nothing to the others.
        bs = batch_size if dp_num_tokens is None or not uniform else -(-rows // max_seqlen_q)

        def eager(reason: str) -> ForwardMode:
            return cls("eager", batch_size, rows, False, None, reason)

        if enforce_eager:
            return eager("enforce_eager")
        if not (mode.uses_tr_hybrid() or mode.has_full_cudagraphs()):
            return eager(f"graph mode {mode.name}")
        if rows == 0:
            return eager("no rows")
        # Token graphs are asked for first: FULL_AND_TR_HYBRID records as TR_HYBRID.
        tr_hybrid = mode.uses_tr_hybrid()
        splits = enable_tbo == "all" and decode and decode_bucket_splits(bs)
        if tr_hybrid and splits:
            return eager("two-batch overlap: token graphs have no split recording")
        if decode and uniform:
            bucket = _smallest_holding(request_sizes, bs)
            if bucket is not None:
                # Beside a token graph a request graph is recorded whole, so only FULL's follow a split.
                split = enable_tbo == "all" and not tr_hybrid and decode_bucket_splits(bucket)
                return cls(
                    kind="request",
                    running_bs=bucket,
                    running_tokens=bucket * max_seqlen_q,
                    token_graph=False,
                    ubatch_split_bs=bucket if split else None,
                    reason=f"request bucket {bucket}",
                )
        if tr_hybrid:
            return cls._pad_to_token_graph(
                token_sizes, rows, batch_size, max_seqlen_q if decode and uniform else None, is_prefill
            )
        if is_prefill:
            return eager(f"prefill under {mode.name}")
        if not uniform:
            return eager("ragged decode has no request graph")
        return eager(_above("sequences", bs, request_sizes, "request"))

    @classmethod
    def _pad_to_token_graph(
        cls,
        token_sizes: Collection[int],
        rows: int,
        batch_size: int,
        uniform_q: int | None,
        is_prefill: bool,
    ) -> ForwardMode:
        """The smallest token bucket holding `rows`, which under data parallelism is the group's largest
        count.

        A recording's collectives are sized by its bucket, so ranks on different buckets would hang.
        """
        phase = "prefill" if is_prefill else "decode"
        bucket = _smallest_holding(token_sizes, rows)
        if bucket is None:
            return cls("eager", batch_size, rows, False, None, _above("rows", rows, token_sizes, phase))
        # A uniform decode pads by whole sequences, so its bucket's sequence count follows from the rows.
        running_bs = batch_size if uniform_q is None else max(batch_size, bucket // uniform_q)
        return cls("token", running_bs, bucket, True, None, f"{phase} token bucket {bucket}")


def _smallest_holding(sizes: Collection[int], n: int) -> int | None:
    ordered = sorted(sizes)
    at = bisect_left(ordered, n)
    return ordered[at] if at < len(ordered) else None


def _above(unit: str, n: int, sizes: Collection[int], kind: str) -> str:
    if not sizes:
        return f"no {kind} bucket recorded"
    return f"{n} {unit} above the largest {kind} bucket {max(sizes)}"


def _check(batch_size: int, num_tokens: int, max_seqlen_q: int, dp_num_tokens: Sequence[int] | None) -> None:
    if batch_size < 0 or num_tokens < batch_size:
        raise DispatchError(
            f"batch_size {batch_size} with num_tokens {num_tokens}: every sequence needs at least one row"
        )
    if max_seqlen_q < 1 or num_tokens > batch_size * max_seqlen_q:
        raise DispatchError(
            f"max_seqlen_q {max_seqlen_q} cannot give {num_tokens} rows in {batch_size} sequences"
        )
    if dp_num_tokens is not None and num_tokens not in dp_num_tokens:
        raise DispatchError(
            f"dp_num_tokens {list(dp_num_tokens)} does not hold this rank's own num_tokens {num_tokens}"
        )
