"""The words of a reply and whom they speak of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.engine.smtp.replies.rules import load_rules
from mailprobe.engine.smtp.replies.text import TEXT_MAX, WORDS_MAX, Names, fold, joined

TABLE = load_rules().table


def words_of(text: str) -> str:
    return joined(fold(Names().remove_from(text), TABLE.lexicon))


def subjects_of(text: str) -> str:
    return TABLE.subjects.mark_subjects(fold(Names().remove_from(text), TABLE.lexicon))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("User Unknown.", "user unknown."),
        ("the user doesn't exist", "the user does not exist"),
        ("<ann@shop.test>: unknown", "@ unknown"),
        ("client [192.0.2.1] refused", "client % refused"),
        ("Utilisateur inconnu", "user unknown"),
        ("L'adresse n'existe pas", "address not exist not"),
        ("Empfänger unbekannt", "recipient unknown"),
        ("Empfa\u0308nger unbekannt", "recipient unknown"),
        ("U\u017cytkownik nieznany", "user unknown"),
        ("Böyle bir kullanıcı yok", "such bir user not exist"),
        ("Пользователь не найден", "user not found"),
        ("Ящик отключён", "mailbox disabled"),
        ("Zu viele unbekannte Empfänger", "zu many unknown recipient"),
        ("用户不存在", "user not exist"),
        ("宛先が見つかりません", "recipient not found"),
        ("존재하지 않는 사용자", "not exist user"),
        ("ｕｓｅｒ ｕｎｋｎｏｗｎ", "user unknown"),
        ("us\u200ber unk\u00adnown", "user unknown"),
        ("不明なエラーです", "unknown error ·"),
        ("...", ""),
    ],
)
def test_words(text: str, words: str):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("The user's account does not exist", "¤ not exist"),
        ("The email account that you tried to reach does not exist", "¤ not exist"),
        ("<ann@shop.test>: Recipient address rejected", "¤ ¤ rejected"),
        ("Sender address does not exist", "‡ not exist"),
        ("address of the sender is unknown", "‡ sender unknown"),
        ("Your address is not found", "‡ not found"),
        ("your recipient is not found", "¤ not found"),
        ("IP address not found", "‡ not found"),
        ("Direccion IP no encontrada", "‡ no found"),
        ("user database unavailable", "‡ unavailable"),
        ("no such user here", "no such ¤"),
        ("发件人地址不存在", "‡ not exist"),
        ("收件人地址不存在", "¤ not exist"),
        ("server is busy", "server busy"),
        ("Folder for the recipient does not exist", "folder for ‡ not exist"),
        ("Forwarding address of user is invalid", "‡ ‡ invalid"),
        ("Mailbox of the user is unknown", "¤ ¤ unknown"),
        ("Spam to this user is not accepted", "spam to ‡ not accepted"),
        ("You wrote to a mailbox that does not exist", "you wrote to ¤ not exist"),
        ("HTML email not accepted", "html ‡ not accepted"),
    ],
)
def test_the_subject_of_a_reply_is_marked(text: str, subjects: str):
    assert subjects_of(text) == subjects


@given(st.text(max_size=2000))
def test_any_text_gives_few_words(text: str):
    words = fold(Names().remove_from(text[:TEXT_MAX]), TABLE.lexicon)
    assert len(words) <= WORDS_MAX
    assert all(word and " " not in word for word in words)
    TABLE.subjects.mark_subjects(words)


def test_no_word_stands_in_two_places_of_the_lexicon():
    """The later one would win unseen."""
    seen: dict[str, str] = {}
    for english, others in TABLE.data["lexicon"].items():
        for other in others.split():
            assert other not in seen, (other, english, seen[other])
            seen[other] = english


def test_the_lexicon_translates_into_english():
    """A word that it gives is not one that it would translate further."""
    for english in TABLE.data["lexicon"]:
        for word in english.split():
            assert TABLE.lexicon.english(word) == word
