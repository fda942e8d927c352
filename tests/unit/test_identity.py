"""Cache scopes, image ids and embedding keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.identity import cache_scope, embedding_key, image_id
from triptych.errors import InvalidArgumentError

RGB = bytes(range(90))
KEY: dict[str, str] = {
    "image_id": "a",
    "model_fingerprint": "b",
    "preprocessing_fingerprint": "c",
    "dtype": "float32",
    "scope": "d",
    "detail": "",
}


def test_digests_are_not_truncated() -> None:
    names = (image_id(5, 6, RGB), cache_scope("t", None), embedding_key(**KEY))
    assert all(re.fullmatch("[0-9a-f]{64}", name) for name in names)


def test_the_values_are_fixed() -> None:
    # Processes of different releases share one store: a change here needs a new tag version.
    assert image_id(5, 6, RGB) == "e5e0fe468946594d065c3ac811d0bd0e2c25bbf686005714c8bbb3f51d7d05a6"
    assert cache_scope("tenant", "salt") == "929ec2593900dd544dc1ed3e7d890fb6f5579e96ede54d574203c37734bcc540"
    assert embedding_key(**KEY) == "5618d3b97a883ea2d861034b2dec5098b28a7bf5d6f85bc056eed39d6ed85a17"


def test_equal_bytes_in_another_shape_are_another_picture() -> None:
    assert len({image_id(5, 6, RGB), image_id(6, 5, RGB), image_id(30, 1, RGB)}) == 3


@pytest.mark.parametrize("field", list(KEY))
def test_every_field_matters_to_an_embedding_key(field: str) -> None:
    assert embedding_key(**{**KEY, field: "other"}) != embedding_key(**KEY)


def test_moving_a_byte_between_fields_matters() -> None:
    one = embedding_key(**{**KEY, "image_id": "ab", "model_fingerprint": "c"})
    two = embedding_key(**{**KEY, "image_id": "a", "model_fingerprint": "bc"})
    assert one != two


def test_an_empty_salt_is_refused_with_its_field() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        cache_scope("tenant", "")
    assert caught.value.param == "cache_salt"


def test_a_salt_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        cache_scope("tenant", "\ud800")


@given(st.text(min_size=1, alphabet=st.characters(codec="utf-8")), st.text(alphabet=st.characters(codec="utf-8")))
def test_no_salt_leads_to_the_common_scope(salt: str, tenant: str) -> None:
    assert cache_scope(tenant, salt) != cache_scope(tenant, None)


def test_tenants_never_meet() -> None:
    scopes = {cache_scope("a", "bc"), cache_scope("ab", "c"), cache_scope("abc", None), cache_scope("", "abc")}
    assert len(scopes) == 4
