"""Single rules at known places: reasoning's end inside a window, ends, bad words, min_tokens."""

import pytest

from runtime.grammar import GrammarError
from runtime.request import Constraint, SamplingParams
from runtime.rules import Rules
from tests.runtime.tiny_grammars import (
    END,
    EOS,
    EOS_IDS,
    GRAMMARS,
    TOKENIZER,
    encode,
    ids,
    members,
    rules,
)
from tests.runtime.tiny_tokenizer import VOCAB_SIZE

ALL = set(range(VOCAB_SIZE))
AFTER = Constraint(kind="regex", source="[0-9]{2}", after_reasoning=True)
DIGITS = Constraint(kind="regex", source="[0-9]+")
[NINE], [X] = encode("9"), encode("x")
CALL = TOKENIZER.id_of("<tool_call>")
THINKING = ALL - {CALL}  # what a reasoning may be made of that a constraint waits for
DIGIT = {token for digit in "0123456789" for token in encode(digit)}


def test_without_rules_there_is_no_mask() -> None:
    made = rules(SamplingParams())
    assert made.window((5, 6, 7)) == (3, None)
    assert made.commit((5, 6, 7, 8)) is None


def test_a_constraint_begins_right_behind_the_end_of_the_reasoning() -> None:
    """Fault H6: the rows behind a drafted marker are masked already, and tokens of
    the reasoning never reach the grammar."""
    made = rules(SamplingParams(constraint=AFTER))
    kept, mask = made.window((X, NINE, X))
    assert kept == 3
    assert [ids(mask, row) for row in range(4)] == [THINKING] * 4
    assert made.commit((X, NINE)) is None
    kept, mask = made.window((X, END, NINE))
    assert kept == 3
    assert [ids(mask, row) for row in range(2)] == [THINKING] * 2
    first = members(GRAMMARS.matcher(AFTER).allowed())
    assert ids(mask, 2) == first
    assert ids(mask, 3) == DIGIT
    # The window is forgotten where its drafts were wrong: the marker was not committed.
    assert made.commit((X, X)) is None
    assert made.window((X,))[0] == 1
    assert made.commit((END,)) is None
    assert ids(made.window(())[1], 0) == first
    assert made.commit((NINE, NINE)) == 2


def test_a_call_does_not_end_a_reasoning_that_a_constraint_waits_for() -> None:
    """It would stand for `</think>`, and the constraint would never begin."""
    made = rules(SamplingParams(constraint=AFTER))
    assert made.window((X, CALL, X))[0] == 1
    assert made.commit((END,)) is None
    assert CALL not in ids(made.window(())[1], 0)


def test_a_draft_that_is_illegal_behind_the_marker_is_cut_off() -> None:
    made = rules(SamplingParams(constraint=AFTER))
    assert made.window((END, X, NINE))[0] == 1
    assert made.window((END, NINE, X))[0] == 2
    assert made.window((END, NINE, NINE))[0] == 3


def test_nothing_stands_behind_the_end_of_a_constraint() -> None:
    """Drafts over the end, and a window that ends there."""
    made = rules(SamplingParams(constraint=Constraint(kind="regex", source="[0-9]{2}")))
    kept, mask = made.window((NINE, NINE, NINE))
    assert (kept, ids(mask, 2)) == (2, ALL)
    assert made.commit((NINE, NINE, X)) == 2


def test_an_end_that_was_only_drafted_is_no_end() -> None:
    made = rules(SamplingParams(constraint=Constraint(kind="regex", source="[0-9]9|[0-9]8x")))
    [eight] = encode("8")
    assert made.window((NINE, NINE))[0] == 2
    assert made.commit((NINE, eight)) is None
    assert ids(made.window(())[1], 0) == {X}


def test_a_stop_token_is_legal_where_the_constraint_may_end_alone() -> None:
    params = SamplingParams(constraint=DIGITS, stop_token_ids=(X,))
    made = rules(params)
    assert not ids(made.window(())[1], 0) & {*EOS_IDS, X}
    assert made.window((NINE, EOS, NINE))[0] == 2  # and nothing behind it
    made.commit((NINE,))
    assert ids(made.window(())[1], 0) >= {*EOS_IDS, X}
    assert made.commit((EOS, NINE)) is None  # the scanner ends it
    ignoring = rules(SamplingParams(constraint=DIGITS, ignore_eos=True))
    ignoring.commit((NINE,))
    assert not ids(ignoring.window(())[1], 0) & set(EOS_IDS)


def test_min_tokens_counts_tokens_and_not_steps() -> None:
    """Fault H5."""
    made = rules(SamplingParams(min_tokens=3, stop_token_ids=(X,)))
    stops = {*EOS_IDS, X}
    kept, mask = made.window((5, 6, 7))
    assert kept == 3
    assert [ids(mask, row) for row in range(4)] == [ALL - stops] * 3 + [ALL]
    assert made.window((5, EOS, 7))[0] == 1
    made.commit((5, 6))
    kept, mask = made.window((7, EOS, 5))
    assert kept == 2
    assert [ids(mask, row) for row in range(2)] == [ALL - stops, ALL]
    made.commit((7,))
    assert made.window((5,)) == (1, None)


def test_bad_words_forbid_the_token_that_would_complete_them() -> None:
    word = encode("again zz")
    assert len(word) > 2
    made = rules(SamplingParams(bad_words=("again zz",)))
    # Across a commit, then inside a window.
    assert made.window(()) == (0, None)
    made.commit(word[:1])
    kept, mask = made.window(word[1:])
    assert kept == len(word) - 2
    assert ids(mask, kept) == ALL - {word[-1]}
    assert all(ids(mask, row) == ALL for row in range(kept))
    made.commit([*word[1:-1], X])
    assert made.window(word[-1:]) == (1, None)
    # Nor does what was drafted alone count as a beginning.
    made.window(word[:-2])
    made.commit(word[-2:-1])
    assert made.window(word[-1:]) == (1, None)


def test_min_tokens_and_bad_words_forbid_together() -> None:
    """Fault H5: each row of a window forbids what either does, and the next row forgets neither."""
    word = encode("again zz")
    made = rules(SamplingParams(min_tokens=len(word), bad_words=("again zz", "x")))
    early = ALL - {X, *EOS_IDS}
    last = early - {word[-1]}
    for _ in range(2):  # a window leaves nothing behind
        kept, mask = made.window(word)
        assert kept == len(word) - 1
        assert [ids(mask, row) for row in range(kept + 1)] == [early] * kept + [last]
    assert made.window((EOS,))[0] == made.window((X,))[0] == 0
    made.commit(word[:-1])
    kept, mask = made.window((5,))
    assert (kept, [ids(mask, row) for row in range(2)]) == (1, [last, ALL - {X}])
    # Behind min_tokens the word is as bad as before, and an end is none.
    made.commit((5, *word[:-1]))
    kept, mask = made.window((EOS,))
    assert (kept, ids(mask, 0)) == (1, ALL - {X, word[-1]})


def test_a_constraint_lifts_neither_min_tokens_nor_bad_words() -> None:
    """Fault H5, where the constraint would let the answer end at every row."""
    made = rules(SamplingParams(constraint=DIGITS, min_tokens=3, bad_words=("99",)))
    assert encode("99") == [NINE, NINE]
    [eight] = encode("8")
    kept, mask = made.window((NINE, eight, NINE, eight))
    assert kept == 4
    rows = [ids(mask, row) for row in range(5)]
    assert rows[:3] == [DIGIT, DIGIT - {NINE}, DIGIT]
    assert rows[3:] == [(DIGIT - {NINE}) | {*EOS_IDS}, DIGIT | {*EOS_IDS}]


def test_a_bad_word_of_one_token_is_never_allowed() -> None:
    [bad] = encode("x")
    made = rules(SamplingParams(bad_words=("x",)))
    kept, mask = made.window((bad, 5))
    assert (kept, ids(mask, 0)) == (0, ALL - {bad})


def test_an_answer_ends_where_its_rules_leave_nothing() -> None:
    """The grammar asks for a token that the other rules forbid."""
    params = SamplingParams(constraint=AFTER, allowed_token_ids=(END, X))
    made = rules(params)
    kept, mask = made.window((X, END, NINE))
    assert (kept, ids(mask, 2)) == (2, ALL)  # drawn and dropped
    assert made.commit((X, END, 7)) == 2
    now = Constraint(kind="regex", source="[0-9]{2}")
    with pytest.raises(GrammarError, match="no first token"):
        rules(SamplingParams(constraint=now, allowed_token_ids=(X,)))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="bad_words: words need a tokenizer"):
        Rules(SamplingParams(bad_words=("a",)), vocab=VOCAB_SIZE)
    with pytest.raises(ValueError, match="constraint: constraints need Grammars"):
        Rules(SamplingParams(constraint=AFTER), vocab=VOCAB_SIZE)
