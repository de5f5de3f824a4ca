"""The vocabulary in a GGUF file's metadata as a `tokenizers` description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.gguf_pretokenizers import PRE_TOKENIZERS, PreTokenizer
from atom.models.checkpoint.gguf_spm import spm_merges
from atom.models.checkpoint.names import shown
from atom.models.checkpoint.tokenizer_data import TokenizerData, template_post_processor
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_SPACE = "\u2581"  # how SentencePiece vocabularies write a space

_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> TokenizerData | None:
    """The tokenizer a GGUF file describes, None if it has no vocabulary.

    Raises:
        CorruptCheckpointError: lists that do not fit together.
        UnsupportedCheckpointError: a kind of vocabulary or of word splitting that is not known here.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "none":
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedCheckpointError(
            f"{path}: tokenizer.ggml.model is {shown(kind)}; supported are 'gpt2' (byte-level) and 'llama' "
            "(SentencePiece)"
        )
    vocabulary = _Vocabulary(path, metadata)
    named = {name: vocabulary.named(key) for name, key in _NAMED_TOKENS.items()}
    if kind == "gpt2":
        scheme = _scheme(path, metadata)
        description = _byte_level(vocabulary, scheme)
        default_add_bos = scheme.add_bos
    else:
        description = _sentencepiece(vocabulary)
        default_add_bos = True
    bos, eos = named["bos_token"], named["eos_token"]
    add_bos = vocabulary.flag("add_bos_token", default=default_add_bos) and bos is not None
    add_eos = vocabulary.flag("add_eos_token", default=False) and eos is not None
    description["post_processor"] = template_post_processor(
        bos=bos if add_bos else None, eos=eos if add_eos else None
    )
    description["added_tokens"] = vocabulary.added_tokens(
        always=[token[1] for token in named.values() if token]
    )
    return TokenizerData(
        json=json.dumps(description, ensure_ascii=False),
        chat_template=_chat_template(path, metadata),
        bos_token=bos[0] if bos else None,
        eos_token=eos[0] if eos else None,
        special_tokens={
            name: token[0]
            for name, token in named.items()
            if token and name not in ("bos_token", "eos_token")
        },
        add_bos=add_bos,
    )


class _Vocabulary:
    """The token list with what belongs to it, lengths and ids checked."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self._metadata = metadata
        self.tokens: list[str] = self._texts("tokens")
        if not self.tokens:
            raise CorruptCheckpointError(f"{path}: tokenizer.ggml.tokens is empty or missing")
        self.types = self._numbers("token_type", default=1)
        self.ids = {token: id_ for id_, token in enumerate(self.tokens)}

    def named(self, key: str) -> tuple[str, int] | None:
        """Text and id of a token that metadata gives as an id."""
        id_ = self._metadata.get(f"tokenizer.ggml.{key}")
        if id_ is None:
            return None
        if isinstance(id_, bool) or not isinstance(id_, int) or not 0 <= id_ < len(self.tokens):
            raise CorruptCheckpointError(
                f"{self.path}: tokenizer.ggml.{key} is {shown(id_)}, expected an id below {len(self.tokens)}"
            )
        return self.tokens[id_], id_

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise CorruptCheckpointError(
                f"{self.path}: tokenizer.ggml.{key} is {shown(value)}, expected a truth value"
            )
        return value

    def scores(self) -> Sequence[float]:
        return self._numbers("scores", default=0.0)

    def merges(self) -> list[tuple[str, str]] | None:
        """The merges the file lists, best first; None if it lists none."""
        if "tokenizer.ggml.merges" not in self._metadata:
            return None
        merges = []
        for index, text in enumerate(self._texts("merges")):
            left, _, right = text.partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise CorruptCheckpointError(
                    f"{self.path}: merge {index}, {shown(text)}, names a token that is not in the vocabulary"
                )
            merges.append((left, right))
        return merges

    def added_tokens(self, *, always: Sequence[int]) -> list[dict[str, Any]]:
        """Tokens matched whole in a text: control ones and `always` (special), user-defined ones (not)."""
        special = {id_ for id_, type_ in enumerate(self.types) if type_ in (_UNKNOWN, _CONTROL)} | set(always)
        whole = special | {id_ for id_, type_ in enumerate(self.types) if type_ == _USER_DEFINED}
        return [
            {
                "id": id_,
                "content": self.tokens[id_],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": id_ in special,
            }
            for id_ in sorted(whole)
            # Of a text listed twice, the last id is the one it encodes to.
            if self.tokens[id_] and self.ids[self.tokens[id_]] == id_
        ]

    def _texts(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CorruptCheckpointError(f"{self.path}: tokenizer.ggml.{key} is no list of texts")
        return value

    def _numbers(self, key: str, *, default: float) -> Sequence[float]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return [default] * len(self.tokens)
        if isinstance(value, str | list) or not isinstance(value, Sequence) or len(value) != len(self.tokens):
            raise CorruptCheckpointError(
                f"{self.path}: tokenizer.ggml.{key} is no list of {len(self.tokens)} numbers"
            )
        return value


def _scheme(path: Path, metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedCheckpointError(
            f"{path}: tokenizer.ggml.pre is {shown(name)}; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _byte_level(vocabulary: _Vocabulary, scheme: PreTokenizer) -> dict[str, Any]:
    return _description(
        normalizer={"type": "NFC"} if scheme.nfc else None,
        pre_tokenizer=scheme.description(),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model={
            "type": "BPE",
            "ignore_merges": scheme.ignore_merges,
            "vocab": vocabulary.ids,
            "merges": vocabulary.merges() or [],
        },
    )


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    prefix = vocabulary.flag("add_space_prefix", default=True)
    merges = vocabulary.merges()
    if merges is None:
        # Only ordinary tokens are built by merging; the others are matched whole or stand for one byte.
        whole = {_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE}
        merged = [id_ for id_, type_ in enumerate(vocabulary.types) if type_ not in whole]
        merges = spm_merges(vocabulary.path, vocabulary.tokens, vocabulary.scores(), merged)
    unknown = vocabulary.named("unknown_token_id")
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        # Also before a text that begins with a space, and after each special token, as SentencePiece's users
        # do it.
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _description(
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "type": "BPE",
            "unk_token": unknown[0] if unknown else None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary.ids,
            "merges": merges,
        },
    )


def _description(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], **parts}


def _chat_template(path: Path, metadata: Mapping[str, Any]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CorruptCheckpointError(f"{path}: tokenizer.chat_template is {shown(template)}, expected text")
    return template
