"""Makes the shape annotations of quintet.ops real before any test imports it."""

from shape_checks_helpers import install

install()
