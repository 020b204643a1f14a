"""Command line of the recipe: stages data, trunk, distil, align, export, judge, report, in order.

Knows the order and the folders; every stage reads what the earlier ones wrote into --work, so each
can run alone or be interrupted and run again.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from models.recipe import data as packed
from models.recipe.align import AlignStage
from models.recipe.dims import Dims
from models.recipe.distil import DistilStage
from models.recipe.drafts import start_heads_from_trunk
from models.recipe.evaluate import Evaluator
from models.recipe.export import export
from models.recipe.judge import Judge
from models.recipe.loop import Loop
from models.recipe.model import Model, initial_parameters
from models.recipe.quantise import with_rounded_experts
from models.recipe.recipe import Recipe
from models.recipe.report import write_report
from models.recipe.trunk import TrunkStage

STAGES = ("data", "trunk", "distil", "align", "export", "judge", "report")


class Run:
    """One invocation: recipe, folders and device."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.work: Path = arguments.work
        self.out: Path = arguments.out
        self.device = torch.device(arguments.device)
        self.capture = self.device.type == "cuda" and not arguments.eager
        changes = dict(change.split("=", 1) for change in arguments.set)
        recipe = Recipe().with_changes(changes)
        self.smoke: bool = arguments.smoke
        self.recipe = recipe.smoke() if self.smoke else recipe
        self.dims = Dims()

    def data(self) -> None:
        if not (self.work / "data.json").exists():
            packed.build(self.work)
        facts = json.loads((self.work / "data.json").read_text())
        if not facts["corpus_is_the_recorded_one"]:
            _say("this library is not the one that trained the shipped weights")

    def _model(self) -> Model:
        parameters = initial_parameters(self.dims, self.recipe.seed)
        on_device = {name: p.to(self.device) for name, p in parameters.items()}
        return Model(self.dims, on_device, self.device)

    def _evaluator(self, *, final: bool) -> Evaluator:
        rows, chats = (2, 8) if self.smoke else (64, 400) if final else (8, 96)
        return Evaluator(packed.load(self.work), self.device, rows=rows, chats=chats)

    def _read(self, stage: str, model: Model) -> None:
        path = self.work / f"{stage}.pt"
        if not path.exists():
            raise ValueError(f"{path} is missing: run --stage {stage} first")
        saved = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, value in (saved["parameters"] | saved["constants"]).items():
                model.parameters[name].copy_(value)

    def trunk(self) -> None:
        model = self._model()
        self._train(TrunkStage(model, self.recipe, self._evaluator(final=False)))
        self._note_perplexities("trunk", model)

    def _note_perplexities(self, name: str, model: Model) -> None:
        """Held-out scores before and after quantisation, and with dense attention after it."""
        final = self._evaluator(final=True)
        for kind, quantised, sparse in (
            ("unquantised", False, True),
            ("nvfp4", True, True),
            ("nvfp4, dense attention", True, False),
        ):
            model.quantised = quantised
            self._note(f"{name}, {kind}", final.trunk_scores(model, sparse=sparse))

    def _train(self, stage: TrunkStage | DistilStage | AlignStage) -> None:
        data = packed.load(self.work)
        loop = Loop(stage, data, self.recipe, self.work, self.device, capture=self.capture)
        begun = time.monotonic()
        loop.run()
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        self._note(
            f"{stage.name} stage",
            {
                "device": name,
                "torch": torch.__version__,
                "tokens": loop.step * stage.schedule.rows * packed.ROW,
                "seconds_of_last_run": time.monotonic() - begun,
            },
        )

    def distil(self) -> None:
        model = self._model()
        self._read("trunk", model)
        model.parameters = with_rounded_experts(model.parameters)
        start_heads_from_trunk(model)
        self._train(DistilStage(model, self.recipe, self._evaluator(final=False)))
        self._note("distil, drafts", self._evaluator(final=True).draft_scores(model))

    def align(self) -> None:
        model = self._model()
        self._read("trunk", model)
        self._read("distil", model)
        self._train(AlignStage(model, self.recipe, self._evaluator(final=False)))
        self._note_perplexities("align", model)
        model.quantised = True
        final = self._evaluator(final=True)
        self._note("align, drafts", final.draft_scores(model))
        self._note("align, selection of regions", final.selection_scores(model))

    def export(self) -> None:
        model = self._model()
        self._read("trunk", model)
        self._read("align", model)
        tokenizer = self.work / "tokenizer"
        self._note("checkpoint", export(model.parameters, self.dims, tokenizer, self.out))

    def judge(self) -> None:
        judge = Judge(self.out, packed.load(self.work))
        self._note("greedy, library", judge.library(2 if self.smoke else 25))
        self._note("greedy, chats", judge.chats(4 if self.smoke else 200))

    def report(self) -> None:
        write_report(self.work, self.out, self.recipe)

    def _note(self, key: str, value: Mapping[str, float | str]) -> None:
        """Add one entry to facts.json in --work, and print it."""
        path = self.work / "facts.json"
        facts = json.loads(path.read_text()) if path.exists() else {}
        facts[key] = value
        part = path.with_suffix(".part")
        part.write_text(json.dumps(facts, indent=1) + "\n")
        part.replace(path)
        text = "  ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()
        )
        _say(f"[{key}] {text}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="models.recipe", description=__doc__)
    parser.add_argument("--stage", choices=("all", *STAGES), default="all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--work", type=Path, default=Path("build/nano"))
    parser.add_argument("--out", type=Path, default=Path("models/step5-nano"))
    parser.add_argument("--smoke", action="store_true", help="a few steps of every stage")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    run = Run(arguments)
    for stage in STAGES if arguments.stage == "all" else (arguments.stage,):
        getattr(run, stage)()


if __name__ == "__main__":
    main()
