"""Checks of the programs' ranks."""


def fails(kind, text, call):
    """The call raises an error of this class and text."""
    error = None
    try:
        call()
    except Exception as raised:
        error = raised
    assert isinstance(error, kind), error
    assert text in str(error), error
