"""The prompts that are measured: a few lines of code to continue and a few chats to answer.

Written out here so that every machine runs the same text. Quality is measured by the recipe on
held-out files and chats; these are for speed.
"""

import json
from pathlib import Path

from runtime.chat import ChatTemplate, parse_chat
from runtime.tokenizer import Tokenizer

CODE = (
    'def read_lines(path):\n    """Return the lines of a text file."""\n    with open(path',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\nimport sys\n\ndef main(argv=None):\n    if argv is None:\n        argv = sys.argv",
    "    def test_empty(self):\n        self.assertEqual(len(self.queue), 0)\n",
)
CHATS = (
    "What is fourstep?",
    "Sort: river apple stone cloud",
    "What is 34 + 25?",
    "Repeat: one green door",
)


def prompts(folder: Path, tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """Token ids of both kinds, by the name the report uses."""
    template = ChatTemplate.open(folder, special_tokens={"bos_token": tokenizer.bos_token})
    chats = [
        template.render(parse_chat(json.dumps([{"role": "user", "content": question}])))
        for question in CHATS
    ]
    return {
        "code": [tokenizer.encode(text) for text in CODE],
        "chat": [tokenizer.encode(text) for text in chats],
    }
