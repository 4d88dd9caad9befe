"""YAML's words are what they look like, and what is written is read again as it was."""

import math

import pytest
import yaml

from quintet.options.layers import canonical, options
from quintet.system import files


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("off", "on", "no", "yes", "Off", "ON", "y", "n", "12:30")),
        *((word, word) for word in ("1:30:00", "2001-01-01", "1e", "e3", ".", "+", "1.2.3")),
        *((word, None) for word in ("~", "null", "Null", "")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False")),
        *(("1e-3", 1e-3), ("1E6", 1e6), ("1.5e+3", 1500.0), (".5", 0.5), ("1.", 1.0), ("-2", -2)),
        *(("010", 10), ("1_000_000", 1_000_000), ("0x10", 16), ("0b11", 3), ("-0x10", -16)),
        *((".inf", math.inf), ("-.inf", -math.inf), ("'off'", "off"), ("'1e-3'", "1e-3")),
    ],
)
def test_a_word_is_what_it_looks_like(text, value):
    found = files.parse_yaml(f"key: {text}")["key"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_words_too():
    assert files.parse_yaml("on: 1\nno: 2\n12:30: 3") == {"on": 1, "no": 2, "12:30": 3}


@pytest.mark.parametrize(
    "value",
    ["off", "1e-3", "010", "12:30", "2001-01-01", "0x10", "true", "~", "", "1_0", ".5", "0o17",
     1e-3, 1e-30, 10**30, True, None, 0.1, -0.0, [1, "no"], {"yes": "on"}, 1e6],
)  # fmt: skip
def test_what_is_written_is_read_again_by_both_versions(value):
    text = files.dump_yaml({"key": value})
    for read in (files.parse_yaml, yaml.safe_load):
        again = read(text)["key"]
        assert again == value
        assert type(again) is type(value)


def test_options_take_words_for_what_they_mean():
    known = options("ppo")

    def said(name, text):
        return canonical(files.parse_yaml(text), known[name])

    for text in ("off", "no", "false", "Off"):
        assert said("runtime.compile", text) == "off"
    for text in ("on", "yes", "true"):
        assert said("runtime.compile", text) == "on"
    assert canonical(False, known["runtime.compile"]) == "off"
    assert canonical(True, known["runtime.compile"]) == "on"
    assert said("model.core", "~") == "none"
    assert said("preset", "null") == "none"
    assert said("minibatch_steps", "~") is None
    assert said("env.kwargs", "~") == {}
    assert said("report.sinks", "~") == ()
