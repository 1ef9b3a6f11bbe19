import pytest

from shoal import _native


def test_codes_have_their_names():
    assert [_native.code_name(c) for c in (0, 1, 8)] == ["Cancelled", "Unavailable", "Internal"]


def test_an_unknown_code_is_refused():
    with pytest.raises(ValueError, match="nine codes"):
        _native.code_name(9)
