"""Extraction, normalization and soft accuracy of answers on the VQA benchmark.

The rules, including their oddities, are the rules of the public evaluation tool, because other rules would make scores
incomparable:

* punctuation between characters becomes a space; next to a space, or anywhere in a text with a comma between digits, it
  is removed; a full stop is removed unless a digit follows;
* "none" and "zero" .. "ten" become digits, articles are removed, contractions get their apostrophe back.

Three published tools normalize different parts; see `vqa_accuracy`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from lever_pipe.base.errors import DataError
from lever_pipe.base.records import Normalisation

_CUT_MARKS = re.compile("Question|Answer|Short")
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_BETWEEN_DIGITS = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")
"""The public pattern also tests for a preceding digit, but with a look-ahead that is always true; this pattern matches
the same texts."""
_MOST_FULL_STOPS = int(re.UNICODE)
"""The public code passes this flag as the `count` argument of `sub`: from the 33rd on, full stops stay."""
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split())}
_ARTICLES = frozenset({"a", "an", "the"})
_CONTRACTION_TABLE = """
aint=ain't arent=aren't cant=can't couldve=could've couldnt=couldn't couldn'tve=couldn't've
couldnt've=couldn't've didnt=didn't doesnt=doesn't dont=don't hadnt=hadn't hadnt've=hadn't've
hadn'tve=hadn't've hasnt=hasn't havent=haven't hed=he'd hed've=he'd've he'dve=he'd've hes=he's
howd=how'd howll=how'll hows=how's Id've=I'd've I'dve=I'd've Im=I'm Ive=I've isnt=isn't
itd=it'd itd've=it'd've it'dve=it'd've itll=it'll let's=let's maam=ma'am mightnt=mightn't
mightnt've=mightn't've mightn'tve=mightn't've mightve=might've mustnt=mustn't mustve=must've
neednt=needn't notve=not've oclock=o'clock oughtnt=oughtn't ow's'at='ow's'at 'ows'at='ow's'at
'ow'sat='ow's'at shant=shan't shed've=she'd've she'dve=she'd've she's=she's shouldve=should've
shouldnt=shouldn't shouldnt've=shouldn't've shouldn'tve=shouldn't've somebody'd=somebodyd
somebodyd've=somebody'd've somebody'dve=somebody'd've somebodyll=somebody'll
somebodys=somebody's someoned=someone'd someoned've=someone'd've someone'dve=someone'd've
someonell=someone'll someones=someone's somethingd=something'd somethingd've=something'd've
something'dve=something'd've somethingll=something'll thats=that's thered=there'd
thered've=there'd've there'dve=there'd've therere=there're theres=there's theyd=they'd
theyd've=they'd've they'dve=they'd've theyll=they'll theyre=they're theyve=they've twas='twas
wasnt=wasn't wed've=we'd've we'dve=we'd've weve=we've werent=weren't whatll=what'll
whatre=what're whats=what's whatve=what've whens=when's whered=where'd wheres=where's
whereve=where've whod=who'd whod've=who'd've who'dve=who'd've wholl=who'll whos=who's
whove=who've whyll=why'll whyre=why're whys=why's wont=won't wouldve=would've wouldnt=wouldn't
wouldnt've=wouldn't've wouldn'tve=wouldn't've yall=y'all yall'll=y'all'll y'allll=y'all'll
yall'd've=y'all'd've y'alld've=y'all'd've y'all'dve=y'all'd've youd=you'd youd've=you'd've
you'dve=you'd've youll=you'll youre=you're youve=you've
"""
_CONTRACTIONS = dict(pair.split("=") for pair in _CONTRACTION_TABLE.split())


def cut_answer(text: str) -> str:
    """Return the answer at the start of a generation, without outer spaces.

    The answer ends before the first "Question", "Answer" or "Short" (words of the prompt template, case-sensitive), or
    before the first comma followed by a space.

    Args:
        text: the generated text after "Short answer:".

    Source: Lever-Plus published code
    """
    before_mark = _CUT_MARKS.split(text, maxsplit=1)[0]
    return before_mark.split(", ", maxsplit=1)[0].strip()


@cache
def normalise_answer(text: str) -> str:
    """Return an answer in the form that the benchmark compares: lower case, digits, no articles.

    Line breaks and tabs become spaces, then punctuation and words are processed, each once and not to a fixed point.

    Args:
        text: a prediction or a reference.

    Source: Antol 2015 (VQA)
    """
    return _process_words(_process_punctuation(_clean_spaces(text)))


def vqa_accuracy(
    prediction: str,
    answers: Sequence[str],
    *,
    normalise_references: Normalisation = "when_they_disagree",
) -> float:
    """Return the soft accuracy of one prediction against its references, in [0, 1].

    mean_i min(1, matches among the references other than i / 3)

    With ten references, 0, 1, 2, 3 and 4 or more matches give 0, .3, .6, .9 and 1. OK-VQA stores each of five
    annotators twice, so that only 0, .6 and 1 occur. A single reference gives 1 if it matches and 0 otherwise; both
    sides are then normalized.

    Args:
        prediction: the model's answer, after `cut_answer`.
        answers: the annotators' answers as stored, at least one, in any order.
        normalise_references: "when_they_disagree": the public tool, which normalizes both sides if the references
            differ, and neither if they are unanimous. (This rule is for questions about text in an image; with it,
            "Yes!" does not match ten times "yes".) "always": both sides always, as in the study's port of OpenFlamingo.
            "punctuation_only": the public tool's first revision, which always normalizes the prediction, and the
            references' punctuation if they differ.

    Raises:
        DataError: there is no reference.

    Source: Antol 2015 (VQA)
    """
    if not answers:
        raise DataError(
            "A question needs at least one reference answer",
            found="none",
            do="Leave the question out or complete its annotations.",
        )
    prediction, references = _compared(prediction, answers, normalise_references)
    n_references = len(references)
    n_matches = references.count(prediction)
    if n_references == 1:
        return float(n_matches)
    # Count in integer thirds, so that only the last division rounds.
    thirds_if_match_left_out = n_matches * min(3, n_matches - 1)
    thirds_if_other_left_out = (n_references - n_matches) * min(3, n_matches)
    return (thirds_if_match_left_out + thirds_if_other_left_out) / (3 * n_references)


def _compared(prediction: str, answers: Sequence[str], normalisation: Normalisation) -> tuple[str, list[str]]:
    """Return the prediction and the references, normalized for comparison."""
    if normalisation == "punctuation_only":
        disagree = len(set(answers)) > 1
        references = [_process_punctuation(text) if disagree else text for text in answers]
        return normalise_answer(prediction), references
    references = [_clean_spaces(text) for text in answers]
    if normalisation == "when_they_disagree" and len(set(references)) == 1 < len(references):
        return _clean_spaces(prediction), references
    return normalise_answer(prediction), [normalise_answer(text) for text in references]


def _clean_spaces(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _process_punctuation(text: str) -> str:
    comma_in_number = _COMMA_BETWEEN_DIGITS.search(text) is not None
    processed = text
    for mark in _PUNCTUATION:
        # As in the public tool, test the original text, although earlier marks are already replaced.
        next_to_space = f"{mark} " in text or f" {mark}" in text
        processed = processed.replace(mark, "" if next_to_space or comma_in_number else " ")
    return _FULL_STOP.sub("", processed, count=_MOST_FULL_STOPS)


def _process_words(text: str) -> str:
    words = [_NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)
