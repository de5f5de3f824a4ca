"""How text is cut into words before byte-level merges apply, by the name a GGUF file gives its scheme.

A vocabulary's merges were learned on words cut in one particular way; cut differently, the same text gets
other ids. The patterns are those of the public `tokenizer.json` files of the model families named beside
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Contractions, words with one leading mark, runs of `digits`, runs of signs, line ends, spaces."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"


_LLAMA3_WORDS = _words(r"\p{N}{1,3}")
_QWEN2_WORDS = _words(r"\p{N}")
# Case matters here: a capital begins a new word.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One scheme.

    Attributes:
        pattern: regular expression of a word; None for GPT-2's, which the byte-level step brings along.
        single_digits: whether every digit is a word of its own, cut out before anything else.
        nfc: whether text is brought into Unicode's composed form first.
        ignore_merges: whether a word that is a token stays whole even if the merges would not build it.
        add_bos: what to do about the start token when the file does not say.
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def description(self) -> dict[str, Any]:
        """The scheme as a `tokenizers` description."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.pattern is None,
        }
        steps: list[dict[str, Any]] = []
        if self.single_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            steps.append(
                {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
            )
        if not steps:
            return byte_level
        return {"type": "Sequence", "pretokenizers": [*steps, byte_level]}


_GPT2 = PreTokenizer()
_SINGLE_DIGITS = PreTokenizer(single_digits=True)
_LLAMA3 = PreTokenizer(_LLAMA3_WORDS, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer(_QWEN2_WORDS, nfc=True)

PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizer(_TEKKEN_WORDS, ignore_merges=True, add_bos=True),
}
