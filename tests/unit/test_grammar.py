"""Languages of answers: what may follow, that nothing but the tokens decides it, and what is wrong with a bad one."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from common.grammar import GrammarCompiler, Language, find_fault
from common.grammar.language import MAX_CHARACTERS
from services.router.caller import Caller
from services.router.grammars import Grammars
from tests.unit.router_tokenizers import DEMO
from triptych.errors import FailedPreconditionError, InvalidArgumentError
from triptych.v1 import types_pb2

END = 1012
ANYBODY = Caller("", math.inf)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(value: Any, lenient: bool = False) -> Language:
    return Language("json_schema", json.dumps(value), lenient)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(DEMO, 1024, [END, 1010])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def allowed(language: Language, ids: list[int]) -> list[int]:
    mask = compiler().state(language).allowed(ids)
    assert mask is not None
    return np.nonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))[0].tolist()


def walk(language: Language, seed: int) -> list[int]:
    """An answer of a model that has no preferences, without its end token; it may be cut off."""
    state, rng, ids = compiler().state(language), random.Random(seed), list[int]()
    while len(ids) < 80:
        mask = state.allowed(ids)
        assert mask is not None
        token = int(rng.choice(np.nonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))[0]))
        if token in (END, 1010):
            break
        ids.append(token)
    return ids


@given(seed=st.integers(0, 10**6))
def test_whatever_is_chosen_a_complete_answer_fits_the_schema(seed: int) -> None:
    ids = walk(schema(SCHEMA), seed)
    if END in allowed(schema(SCHEMA), ids):
        found = json.loads(tokenizer().decode(ids))
        assert set(found) >= {"name", "age"} and len(found["name"]) <= 6 and 0 <= found["age"] <= 150


@given(seed=st.integers(0, 10**6), at=st.integers(0, 80))
def test_what_may_follow_depends_on_the_tokens_only(seed: int, at: int) -> None:
    ids = walk(schema(SCHEMA), seed)[:at]
    followed = compiler().state(schema(SCHEMA))
    for end in range(len(ids) + 1):
        mask = followed.allowed(ids[:end])
    assert compiler().state(schema(SCHEMA)).allowed(ids) == mask


def test_an_answer_may_end_only_when_it_is_complete() -> None:
    text = tokenizer().encode('{"name": "x", "age": 5', add_special_tokens=False).ids
    assert END not in allowed(schema(SCHEMA), text)
    assert allowed(schema({"const": 1}), tokenizer().encode("1", add_special_tokens=False).ids) == [1010, END]


def test_json_is_written_as_templates_write_it() -> None:
    for value in ({"a": [1, 2], "b": {"c": None}}, {}):
        state = compiler().state(schema({"type": "object"}))
        assert state.allowed(tokenizer().encode(json.dumps(value), add_special_tokens=False).ids) is not None


@pytest.mark.parametrize(
    "language", [Language("regex", "(yes|no)!?"), Language("lark", 'start: ("yes" | "no") "!"?')], ids=["regex", "lark"]
)
def test_other_notations(language: Language) -> None:
    said = {tokenizer().decode(walk(language, seed)) for seed in range(20)}
    assert said <= {"yes", "no", "yes!", "no!"}
    assert len(said) > 1


def test_tokens_outside_the_language_end_it_for_good() -> None:
    state = compiler().state(Language("regex", "[0-9]+"))
    assert state.allowed(tokenizer().encode("no", add_special_tokens=False).ids) is None
    assert state.failed


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"type": "objekt"}, ""),
        ({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"typ": 1, "not": {}}}}}},
         "properties.a.properties.b"),
        ({"type": "array", "items": {"type": "string", "pattern": "(["}}, "items"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "odd"}]}, "anyOf[1]"),
        ({"$defs": {"x": {"uniqueItems": True, "type": "array"}}, "properties": {"a": {"$ref": "#/$defs/x"}}},
         "$defs.x"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "properties.a"),
    ],
)  # fmt: skip
def test_the_part_of_a_schema_at_fault_is_found(value: Any, path: str) -> None:
    fault = find_fault(schema(value))
    assert fault is not None and (fault.path, bool(fault.message)) == (path, True)


def test_what_cannot_be_enforced_may_be_left_out() -> None:
    assert find_fault(schema({"type": "array", "uniqueItems": True}, lenient=True)) is None
    assert find_fault(schema(SCHEMA)) is None


@pytest.mark.parametrize("language", [Language("regex", "(["), Language("lark", "start: nothing")])
def test_bad_notation_is_found_before_and_when_it_is_compiled(language: Language) -> None:
    assert find_fault(language) is not None
    with pytest.raises(InvalidArgumentError):
        compiler().state(language)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000])
def test_a_schema_is_a_json_object(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Language("json_schema", text).source()


def test_the_wire_form_is_checked() -> None:
    assert Language.of(types_pb2.Grammar(regex="a", lenient=True)) == Language("regex", "a", True)
    for message in (types_pb2.Grammar(), types_pb2.Grammar(lark="x" * (MAX_CHARACTERS + 1))):
        with pytest.raises(InvalidArgumentError):
            Language.of(message)


def test_a_model_without_a_readable_tokenizer_has_no_grammars(tmp_path: Any) -> None:
    with pytest.raises(FailedPreconditionError):
        GrammarCompiler(tmp_path, 10, [0]).state(Language("regex", "a"))


def test_long_chains_of_rules_do_not_overflow_the_stack() -> None:
    rules = [f'a{at}: "x" a{at + 1}' for at in range(1700)]
    lark = Language("lark", "\n".join(["start: a0", *rules, 'a1700: "z"']))
    definitions = {f"a{at}": {"properties": {"p": {"$ref": f"#/$defs/a{at + 1}"}}} for at in range(550)}
    refs = schema({"$ref": "#/$defs/a0", "$defs": definitions | {"a550": {"type": "string"}}})
    for language in (lark, refs):
        assert len(language.text) > MAX_CHARACTERS * 0.8
        assert find_fault(language) is None
        assert compiler().state(language).allowed([]) is not None


async def test_grammars_whose_callers_left_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started, released, begun = threading.Event(), threading.Event(), []

    def slow(language: Language, param: str) -> None:
        begun.append(language.text)
        started.set()
        released.wait()

    monkeypatch.setattr("services.router.grammars._find", slow)
    grammars = Grammars()
    hasty = asyncio.create_task(grammars.check(types_pb2.Grammar(regex="a"), ANYBODY))
    await asyncio.to_thread(started.wait)
    hasty.cancel()
    await asyncio.gather(hasty, return_exceptions=True)
    patient = asyncio.create_task(grammars.check(types_pb2.Grammar(regex="b"), ANYBODY))
    await asyncio.sleep(0)
    await asyncio.to_thread(bool)
    assert begun == ["a"]
    released.set()
    await patient
    assert begun == ["a", "b"]


async def test_tenants_take_turns_whatever_each_of_them_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr("services.router.grammars._find", lambda language, param: begun.append(language.text))
    grammars = Grammars()
    asked = [("greedy", "a"), ("greedy", "b"), ("greedy", "c"), ("modest", "d")]
    checks = [grammars.check(types_pb2.Grammar(regex=text), Caller(tenant, math.inf)) for tenant, text in asked]
    await asyncio.gather(*checks)
    assert begun == ["a", "d", "b", "c"]


async def test_a_known_grammar_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def find(language: Language, param: str) -> None:
        if language.text == "b":
            released.wait()

    monkeypatch.setattr("services.router.grammars._find", find)
    grammars = Grammars()
    await grammars.check(types_pb2.Grammar(regex="a"), ANYBODY)
    slow = asyncio.create_task(grammars.check(types_pb2.Grammar(regex="b"), ANYBODY))
    await asyncio.sleep(0)
    await grammars.check(types_pb2.Grammar(regex="a"), ANYBODY)
    released.set()
    await slow
