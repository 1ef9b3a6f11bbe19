"""The seam between tests and the package: the private names that Python tests import, in one module per package.

A change that moves or renames such a name changes one line here. tests/tidy_test.py refuses further ones elsewhere.
"""
