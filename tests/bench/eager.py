"""step5-nano without kernels: `python -m tests.bench.eager CHECKPOINT`, a child that answers with
tokens a second by kind of prompt.

The reference operators in torch, block by block, K = 3: what every compiled engine is checked
against, and what the first version ran.
"""

import sys
from pathlib import Path

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from runtime.engine import Engine
from runtime.request import SamplingParams
from runtime.tokenizer import Tokenizer
from tests.bench.child import serve
from tests.bench.prompts import prompts
from tests.bench.speed import Runner, run_prompts

TOKENS = 48  # half of what the compiled engines make: it takes far longer


def main() -> None:
    folder = Path(sys.argv[1])
    checkpoint = Checkpoint.open(folder)
    config = checkpoint.config
    tokenizer = Tokenizer.open(folder, vocab_size=config.vocab_size, bos_id=config.bos_id)
    plan = EnginePlan(batches=(1,), prefill=(64,))
    engine = Engine(config, checkpoint.load(), plan=plan, context=512)
    params = SamplingParams(max_tokens=TOKENS)
    asked = prompts(folder, tokenizer)
    runner = Runner(engine=engine)

    def measure() -> dict[str, float]:
        return {k: run_prompts(runner, ids, params).tokens_per_second for k, ids in asked.items()}

    serve(measure)


if __name__ == "__main__":
    main()
