"""The words of the embedded world."""

from __future__ import annotations

from lever_pipe.world import lexicon


def test_every_question_and_answer_is_in_the_vocabulary() -> None:
    texts = [t for r in lexicon.RELATIONS for t in (*r.questions, *r.answers)]
    words = {word for text in texts for word in lexicon.split_words(text)}
    assert words <= set(lexicon.VOCABULARY)
    assert len(lexicon.VOCABULARY) <= 120  # rows of the models' embedding tables


def test_special_tokens_have_the_ids_that_the_model_configuration_names() -> None:
    assert lexicon.VOCABULARY["<|im_end|>"] == lexicon.IM_END_ID == 2
    assert lexicon.VOCABULARY["<|image_pad|>"] == lexicon.IMAGE_ID == 5
    assert lexicon.VOCABULARY["<|unk|>"] == lexicon.UNKNOWN_ID == 7


def test_words_split_from_punctuation_and_newlines_vanish() -> None:
    assert lexicon.split_words("user\nwhat is this?\n") == ["user", "what", "is", "this", "?"]


def test_answers_are_single_words_and_name_one_relation() -> None:
    answers = [a for relation in lexicon.RELATIONS for a in relation.answers]
    assert all(lexicon.split_words(answer) == [answer] for answer in answers)
    assert len(set(answers)) == len(answers)
    # What an image shows has one answer per key.
    assert all(len(relation.answers) == len(relation.keys) for relation in lexicon.PERCEPTUAL)


def test_question_types_are_relation_and_key() -> None:
    material, count = lexicon.RELATIONS[0], lexicon.RELATIONS[-1]
    assert lexicon.question_type(material, "ball") == "material:ball"
    assert lexicon.answer_type(material) == "other"
    assert lexicon.answer_type(count) == "number"
