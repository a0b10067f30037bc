"""Files become raw documents with positions; hostile files become InputErrors."""

import pytest

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json


def only(text: bytes | str) -> Json:
    (document,) = load(text)
    return document.raw


def test_documents_have_their_line_numbers() -> None:
    text = "# c\n---\na: 1\n---\n\n# nothing\n---\n- b\n"
    documents = load(text, file="f.yaml")
    assert [one.raw for one in documents] == [{"a": 1}, ["b"]]
    assert [(one.index, one.line) for one in documents] == [(0, 3), (2, 8)]
    assert documents[0].file == "f.yaml"


def test_list_is_split() -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- {kind: A}\n- {kind: B}\n"
    documents = load(text)
    assert [(one.raw["kind"], one.item) for one in documents] == [("A", 0), ("B", 1)]


def test_json_is_read_as_json() -> None:
    assert only('{"a": 1.0, "b": 1e3, "c": [1.5, true, null],\t"d": "\\u00e4"}') == {
        "a": 1,
        "b": 1000,
        "c": [1.5, True, None],
        "d": "\u00e4",
    }


def test_last_of_duplicate_keys_wins() -> None:
    assert only("a: 1\na: 2\n") == {"a": 2}


def test_keys_become_strings() -> None:
    assert only("1: a\nyes: b\n1.5: c\n") == {"1": "a", "true": "b", "1.5": "c"}


def test_quoted_scalars_stay_text() -> None:
    assert only("a: '1'\nb: \"yes\"\nc: |\n  1\nd: !!str 1\n") == {
        "a": "1",
        "b": "yes",
        "c": "1\n",
        "d": "1",
    }


def test_aliases_and_merge_keys() -> None:
    text = "base: &b {p: 1, q: 2}\nuse:\n  <<: *b\n  q: 3\nlist: [*b]\n"
    raw = only(text)
    assert raw["use"] == {"p": 1, "q": 3}
    assert raw["list"] == [{"p": 1, "q": 2}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [1\n", "policy.syntax"),
        ("a: *b\n", "policy.syntax"),
        ("a: &a [*a]\n", "policy.syntax"),
        ("? [1]\n: 2\n", "policy.syntax"),
        ("~: 2\n", "policy.syntax"),
        ("a: .inf\n", "policy.syntax"),
        ("a: \x00\n", "policy.syntax"),
        (b"a: \xff\xfe\n", "policy.syntax"),
        ("[" * (JSON_DEPTH_MAX + 1), "policy.too_deep"),
        (
            '{"a":' * (JSON_DEPTH_MAX + 2) + "1" + "}" * (JSON_DEPTH_MAX + 2),
            "policy.too_deep",
        ),
    ],
)
def test_rejected_input(text: bytes | str, code: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        load(text, file="f")
    assert caught.value.code == code
    assert caught.value.where.file == "f"


def test_syntax_error_has_its_position() -> None:
    with pytest.raises(PolicyInvalid) as caught:
        load("a: 1\nb: [1\nc: 2\n")
    assert (caught.value.where.line, caught.value.where.column) == (3, 2)


def test_alias_bomb_is_rejected() -> None:
    """Nine levels of nine aliases expand to 400 million nodes."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        many = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{many}]")
    with pytest.raises(PolicyInvalid) as caught:
        load("\n".join(lines))
    assert caught.value.code == "policy.alias_bomb"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1\n...\nb: 2\n", [({"a": 1}, 1)]),
        ("a: 1\n...\n---\nb: 2\n...\n", [({"a": 1}, 1), ({"b": 2}, 4)]),
        ("a: 1\n...\n[not yaml\n---\nb: 2", [({"a": 1}, 1), ({"b": 2}, 5)]),
        ("--- {a: 1}\n... # end\n...\nb: 2\n---\nc: 3", [({"a": 1}, 2), ({"c": 3}, 6)]),
        ("a: 1\r\n...\r\nb: 2\r\n---\r\nc: 3\r\n", [({"a": 1}, 1), ({"c": 3}, 5)]),
        ("\ufeffa: 1\n...\nb: 2\n", [({"a": 1}, 1)]),
        ("a: |\n  ...\nb: '...'\n", [({"a": "...\n", "b": "..."}, 1)]),
    ],
)
def test_text_after_the_end_of_a_document_is_not_read(
    text: str, wanted: list[tuple[Json, int]]
) -> None:
    """Upstream also reads one document between two ``---`` lines."""
    for given in (text, text.encode()):
        assert [(one.raw, one.line) for one in load(given)] == wanted


@pytest.mark.parametrize("text", ["...\na: 1\n", "# note\n...\na: 1\n"])
def test_document_end_before_any_content_is_an_error(text: str) -> None:
    """Otherwise the object after it would be lost silently."""
    with pytest.raises(PolicyInvalid):
        load(text)
