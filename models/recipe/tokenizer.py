"""The tokenizer of step5-nano and the chat template's rendering.

Trains a byte-level BPE on the library and the chats. Knows the family's special tokens and ids 0,
1, 2; does not know the model. Newlines and digits are tokens of their own: template text always
splits at the same places, and sums read digit by digit.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.recipe.tasks import Chat

VOCABULARY = 3072
BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
PAD = "<\uff5c\u2581pad\u2581\uff5c>"
SPECIALS = (
    BOS, EOS, PAD, "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>", "<im_start>", "<im_end>", "<im_patch>",
    "<patch_start>", "<patch_end>", "<patch_newline>",
)  # fmt: skip
# special for training and decoding, but visible text: parsers read these
VISIBLE = frozenset(SPECIALS[5:11])
SPLIT = r"\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A byte-level BPE of exactly `vocabulary` ids, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(
            f"the texts give {tokenizer.get_vocab_size()} tokens, not the {vocabulary} asked for"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "chat_template.jinja").write_bytes(TEMPLATE.read_bytes())


class ChatRenderer:
    """Renders chats through the shipped template, as a server would."""

    def __init__(self) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string(TEMPLATE.read_text())

    def _render(self, chat: Chat, messages: list[dict[str, Any]], prompt: bool) -> str:
        extra = {"reasoning_effort": chat.effort} if chat.effort else {}
        return self.template.render(
            messages=messages, tools=list(chat.tools), add_generation_prompt=prompt, **extra
        )

    def prompt(self, chat: Chat) -> str:
        """Text up to and including the generation prompt."""
        return self._render(chat, list(chat.messages), True)

    def answer(self, chat: Chat) -> str:
        """Text that the model should produce after the prompt, `<|im_end|>` included."""
        whole = self._render(chat, [*chat.messages, chat.answer], False)
        prompt = self.prompt(chat)
        assert whole.startswith(prompt)
        assert whole.endswith("<|im_end|>\n")
        return whole[len(prompt) : -1]
