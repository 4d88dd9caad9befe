"""Makes the shape annotations of quintet.ops real before any test imports it."""

from jaxtyping import install_import_hook

install_import_hook("quintet.ops", "beartype.beartype")
