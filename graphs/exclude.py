"""The quantisation config's exclude list, compared with what the tensors turned out to be.

Knows the pattern kinds (plain names, fnmatch wildcards, `re:` expressions) and matches them in
every spelling of a module. Does not decide anything: tensors decide their format, this module only
writes notes. Keeps true: every pattern without effect and every contradiction is named.
Architecture 1.5.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence

from graphs.errors import CheckpointError
from graphs.names import canonical, module_spellings
from graphs.shards import listed

_EXPERT = re.compile(r"\.experts\.\d+\.")
FEW = 8


def exclude_notes(
    patterns: Sequence[str], formats: Mapping[str, str | None], *, claimed: bool
) -> list[str]:
    """Notes on patterns that match nothing or contradict the tensors, and on modules left out.

    `formats` maps every module's canonical name to its quantised format, None for an ordinary one;
    `claimed` says whether the config calls the model quantised at all.
    """
    matched = _match_all(patterns, formats)
    notes = []
    if idle := [pattern for pattern, modules in matched.items() if not modules]:
        notes.append(f"exclude patterns that match no module: {listed(idle)}")
    for pattern, modules in matched.items():
        if wrong := [module for module in modules if formats[module]]:
            kinds = " and ".join(sorted({str(formats[module]) for module in wrong}))
            notes.append(
                f"exclude pattern {pattern!r} covers {listed(wrong, FEW)}, stored as {kinds}; the "
                "tensors decide"
            )
    return notes + _unclaimed_notes(matched, formats, claimed=claimed)


def _unclaimed_notes(
    matched: Mapping[str, Sequence[str]], formats: Mapping[str, str | None], *, claimed: bool
) -> list[str]:
    """Routed experts whose stored format the config does not announce."""
    quantised = [module for module, kind in formats.items() if kind]
    if not claimed:
        if not quantised:
            return []
        return [f"no quantization_config, but {listed(quantised, FEW)} are quantised"]
    covered = {module for modules in matched.values() for module in modules}
    plain = [module for module, kind in formats.items() if not kind and ".moe." in module]
    experts = [m for m in plain if m.endswith("_proj") and m not in covered]
    if not experts:
        return []
    return [f"not quantised, though no exclude pattern covers them: {listed(experts, FEW)}"]


def _match_all(patterns: Sequence[str], formats: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Pattern -> modules it covers. Patterns that only differ in the expert number count once."""
    spellings = {module: module_spellings(module) for module in formats}
    unique = {_EXPERT.sub(".experts.0.", pattern): pattern for pattern in reversed(patterns)}
    matched = {}
    for pattern in reversed(unique):
        test = _compile(pattern)
        matched[unique[pattern]] = [
            module for module, names in spellings.items() if any(map(test.search, names))
        ]
    return matched


def _compile(pattern: str) -> re.Pattern[str]:
    """A plain name covers modules it names, or whose name holds it between dots."""
    if pattern.startswith("re:"):
        try:
            return re.compile(rf"\A(?:{pattern[3:]})")
        except re.error as error:
            raise CheckpointError(
                f"exclude pattern {pattern!r} is not a regular expression: {error}"
            ) from error
    pattern = pattern.removesuffix(".weight")
    if any(character in pattern for character in "*?["):
        return re.compile(rf"\A{fnmatch.translate(pattern)}")
    return re.compile(rf"(?:\A|\.){re.escape(canonical(pattern))}(?:\.|\Z)")
