"""Text to token ids and back, with the tokenizer that a checkpoint brings along."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

from atom.runner.chat_template import ChatTemplate, Message
from atom.runner.errors import ChatTemplateError, PromptError, TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atom.runner.protocols import TokenizerData


class Tokenizer:
    """Encodes prompts and decodes answers; stateless, so requests may share it."""

    def __init__(self, source: TokenizerData) -> None:
        """Build from what the checkpoint holds.

        Raises:
            TokenizerError: the description is not one that the `tokenizers` library understands.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(source.json)
        except Exception as error:  # the library raises bare Exception, with the reason as text
            raise TokenizerError(f"the checkpoint's tokenizer cannot be read: {error}") from error
        # A limit stored with the tokenizer would cut prompts without a word.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._source = source
        self._decoder = json.loads(source.json).get("decoder")

    @property
    def vocab_size(self) -> int:
        """Number of token ids that decode to text, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def bos_token_id(self) -> int | None:
        """Id of the token that starts a text, or None."""
        return self.token_id(self._source.bos_token)

    @cached_property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a text, or None."""
        return self.token_id(self._source.eos_token)

    def token_id(self, token: str | None) -> int | None:
        """Id of a token given as text, None if the vocabulary lacks it."""
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; tokens such as `<|im_end|>` written out in it become the special token.

        `add_special_tokens` puts the start token in front where the checkpoint wants one. Text from a chat
        template already holds it.

        Raises:
            PromptError: the text holds half of a surrogate pair, as badly decoded input does.
        """
        require_text(text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        bos = self.bos_token_id
        if add_special_tokens and self._source.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The checkpoint's chat template, None if it has none.

        Raises:
            ChatTemplateError: it does not parse.
        """
        if self._source.chat_template is None:
            return None
        named = {"bos_token": self._source.bos_token, "eos_token": self._source.eos_token}
        tokens = {name: token for name, token in named.items() if token is not None}
        return ChatTemplate(
            self._source.chat_template, special_tokens={**tokens, **self._source.special_tokens}
        )

    def render_chat(self, messages: Sequence[Message], **variables: Any) -> str:
        """Prompt text for chat messages (`role`, `content`), ended so that the assistant speaks next.

        Raises:
            ChatTemplateError: the checkpoint has no template, or it failed on these messages.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                "this checkpoint has no chat template: prompt it with plain text (--raw on the command line)"
            )
        return self.chat_template.render(messages, **variables)

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Token ids of `render_chat`'s text."""
        return self.encode(self.render_chat(messages, **variables), add_special_tokens=False)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether every token stands for fixed bytes, so that its neighbours do not change its text."""
        decoder = self._decoder or {}
        if decoder.get("type") == "Sequence":
            steps = decoder.get("decoders", [])
            decoder = steps[0] if len(steps) == 1 else {}
        return bool(decoder.get("type") == "ByteLevel")

    @cached_property
    def token_bytes(self) -> Mapping[int, bytes]:
        """What each token of a byte-level vocabulary adds to a text: filled as ids are asked for.

        Tokens that decoding leaves out, and ids outside the vocabulary, add nothing.
        """
        return _TokenBytes(self._tokenizer)


def require_text(text: str) -> None:
    """Refuse a string that holds half of a surrogate pair, as badly decoded input does: it has no UTF-8 form.

    Raises:
        PromptError: names the half.
    """
    half = next((character for character in text if "\ud800" <= character <= "\udfff"), None)
    if half is not None:
        raise PromptError(
            f"the prompt is not UTF-8 text: it holds U+{ord(half):04X}, half of a surrogate pair"
        )


class _TokenBytes(dict[int, bytes]):
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        super().__init__({token_id: b"" for token_id, token in added.items() if token.special})

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = spelled = _spelling(self._tokenizer.id_to_token(token_id) or "")
        return spelled


def _spelling(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an added token is stored as it reads
        return token.encode()


def _byte_of_character() -> dict[str, int]:
    # The byte-level alphabet: printable Latin-1 stands for itself, the other bytes follow from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of_character()
