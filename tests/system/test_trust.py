"""What a file names is imported and called only where this user made the file, or says so too."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from attacks_helpers import (
    ATTACKS,
    Attack,
    change_meta,
    change_options,
    forget,
    plant,
    register,
    strangers_copy,
)
from small_run_helpers import save_options

import quintet
from quintet.checkpoints import checkpoint
from quintet.commands import cli
from quintet.errors import QuintetError, UntrustedError
from quintet.system import trust

SMALL = (
    *("--env.num-streams", "4", "--unroll-steps", "16", "--minibatch-steps", "32"),
    *("--num-epochs", "1", "--eval.episodes", "2", "--total-steps", "128"),
)
PLAIN = (*SMALL, "--env", "CartPole-v1", "--env.backend", "gymnasium", "--model.policy-hidden", "8")

TASKS = """
import gymnasium
import torch


def make(level="x.y", bonus=0.0, names=(), **more):
    assert level == "x.y"
    return gymnasium.make("CartPole-v1")


class Encoder(torch.nn.Module):
    def __init__(self, leaves, width=4, act="torch.tanh"):
        super().__init__()
        self.layer = torch.nn.Linear(4, width)
        self.feature_size = width

    def forward(self, obs):
        return torch.tanh(self.layer(obs["obs"]))
"""
OWN_KWARGS = {
    "level": "x.y", "bonus": 1e-05, "names": ["a.b", "é\n"], "deep": {"1": {"on": True, "x": None}},
}  # fmt: skip
NAMED = ("--env", "own_tasks:make", "--model.encoder", "own_tasks:Encoder")


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """A run that names no code."""
    folder = tmp_path_factory.mktemp("trust") / "run"
    assert cli.main(["train", "ppo", *PLAIN, "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def own_code(tmp_path_factory):
    """A working folder with a module of the user's own."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_tasks.py").write_text(TASKS)
    return folder


@pytest.fixture(scope="module")
def own_run(own_code, tmp_path_factory):
    """A run of code of the user's own, with arguments that are no plain words."""
    folder = tmp_path_factory.mktemp("own") / "run"
    with contextlib.chdir(own_code):
        kwargs = ("--env.kwargs", json.dumps(OWN_KWARGS))
        more = ("--model.encoder-kwargs", '{"act": "torch.tanh"}', "--run-dir", str(folder))
        assert cli.main(["train", "ppo", *SMALL, *NAMED, *kwargs, *more]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working folder, with a stranger's module in it, and imports that leave nothing behind."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])  # as python -m quintet has it
    register()
    forget()
    plant(folder, tmp_path / "mark")
    yield folder
    forget()


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def command(capsys):
    """Runs a command; gives its status, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([str(each) for each in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def is_one_sentence(text: str) -> bool:
    return text.count("\n") == 0 and ". " not in text and "trust=True" in text and len(text) < 1000


def is_refusal(status: int, err: str) -> bool:
    begin = "error: "
    return status == 2 and err.startswith(begin) and is_one_sentence(err.removesuffix("\n"))


@pytest.fixture(params=ATTACKS)
def attack(request) -> Attack:
    return ATTACKS[request.param]


@pytest.fixture
def stranger(plain_run, tmp_path, attack, mark) -> Path:
    return strangers_copy(plain_run, tmp_path / "stranger", attack, mark)


# A stranger's folder


def test_the_attacks_are_real(attack, stranger, mark):
    """Where they are trusted, each leaves its mark, by way of the policy and of the run."""
    with contextlib.suppress(QuintetError, AttributeError, TypeError):
        quintet.evaluate(quintet.load(stranger, trust=True), episodes=1)
    assert mark.exists()
    mark.unlink()
    forget()
    cli.main(["train", "ppo", "--run-dir", str(stranger), "--total-steps", "256", "--trust"])
    assert mark.exists()


def test_python_refuses_them(attack, stranger, mark):
    for folder in (stranger, stranger / "policy", next((stranger / "checkpoints").iterdir())):
        with pytest.raises(UntrustedError) as caught:
            quintet.evaluate(quintet.load(folder), episodes=1)
        assert is_one_sentence(str(caught.value))
        assert str(stranger) in str(caught.value)
    with pytest.raises(UntrustedError):
        quintet.evaluate(quintet.load(stranger, "best"), episodes=1)
    described = json.loads((stranger / "policy/meta.json").read_text())["policy"]
    publication = quintet.load(stranger, trust=True).publication if not attack.of_encoder else None
    if publication is not None:
        with pytest.raises(UntrustedError):
            quintet.evaluate(quintet.Policy(described, publication), episodes=1)
    assert not mark.exists()


def test_commands_refuse_them(attack, stranger, mark, command):
    for arguments in (
        ("eval", stranger),
        ("eval", stranger / "policy", "--json", "--video", "film.mp4"),
        ("eval", stranger, "--checkpoint", "best"),
        ("train", "ppo", "--run-dir", stranger),
        ("train", "ppo", "--run-dir", stranger, "--total-steps", "256"),
        ("train", "ppo", "--run-dir", stranger, "--total-steps", "256", "--eval.episodes", "1"),
        ("config", "ppo", "--run-dir", stranger),
    ):  # fmt: skip
        status, out, err = command(*arguments)
        assert is_refusal(status, err), (arguments, err)
        assert out == ""
        assert not mark.exists(), arguments


def test_a_group_refuses_them(attack, plain_run, tmp_path, mark, command):
    strangers_copy(plain_run, tmp_path / "group/s1", attack, mark)
    status, _, err = command("train", "ppo", "--seeds", "1,2", "--run-dir", tmp_path / "group")
    assert status == 2, err
    assert not mark.exists()


def test_the_environment_of_evaluations_is_not_a_strangers(plain_run, tmp_path, mark, command):
    for number, (change, given) in enumerate([
        ({"eval.env.id": "strangers_module:make"}, ("--env", "CartPole-v1")),
        ({"eval.env.kwargs": {"hook": "strangers_module:make"}}, ("--env", "CartPole-v1")),
        ({"eval.env.id": "strangers_module:make"}, ("--eval.env.kwargs", '{"x": 1}')),
    ]):  # fmt: skip
        run = tmp_path / f"run{number}"
        shutil.copytree(plain_run, run)
        change_options(run, lambda options, change=change: options.update(change))
        for arguments in (("train", "--total-steps", "256"), ("config",)):
            status, out, err = command(
                arguments[0], "ppo", "--run-dir", run, *given, *arguments[1:]
            )
            assert is_refusal(status, err), err
            assert out == ""
    again = ("--eval.env", "strangers_module:make", "--total-steps", "256")
    assert not mark.exists()
    status, _, err = command("train", "ppo", "--run-dir", tmp_path / "run0", *again)
    assert mark.exists(), err  # who names it again wants it
    assert status == 2


EACH_WAY = ("function", "module", "argument", "encoder")
"""One by each option that names code, and one of the stranger's own module."""


@pytest.mark.parametrize(
    "attack",
    [each if each in EACH_WAY else pytest.param(each, marks=pytest.mark.slow) for each in ATTACKS],
    indirect=True,
)
def test_what_only_reads_them_runs_nothing(attack, stranger, mark, command):
    status, _, _ = command("plot", stranger, "--out", "plot.png")
    assert status == 0
    new = ("train", "ppo", *PLAIN, "--run-dir", "new", "--init-from", stranger)
    status, _, err = command(*new)
    assert status == (2 if attack.of_encoder else 0), err  # another network, so it can't be begun
    status, _, err = command("eval", stranger, "--env", "CartPole-v1", "--episodes", "1")
    assert status == (2 if attack.of_encoder else 0), err
    assert not mark.exists()


@pytest.mark.parametrize("key", [{}, {"num_streams": 8}])
@pytest.mark.parametrize("name", ["subprocess:getoutput", "own_game:parallel_env"])
def test_agents_are_not_counted_by_a_strangers_code(name, key, tmp_path, here, mark, command):
    """A file that leaves options out, whose values would follow from the environment."""
    folder = tmp_path / "stranger"
    (here / "own_game.py").write_text(f"open({str(mark)!r}, 'w')\nparallel_env = dict")
    env = {"id": name, "backend": "pettingzoo", "kwargs": {"cmd": f"touch {mark}"}, **key}
    options = {"algo": "ppo", "seed": 0, "total_env_steps": 4_096}
    options |= {f"env.{name}": value for name, value in env.items()}
    save_options(folder, options)
    for words in (
        ("train", "ppo", "--run-dir", str(folder)),
        ("train", "--run-dir", str(folder)),
        ("config", "ppo", "--run-dir", str(folder)),
        ("eval", str(folder)),
    ):
        status, _, _ = command(*words)
        assert status != 0 or words[0] == "config", words
        assert not mark.exists(), words


def test_a_stranger_may_name_plain_ids_and_plain_arguments(plain_run, tmp_path, mark, command):
    harmless = Attack("CartPole-v1", {"sutton_barto_reward": True, "render_mode": "rgb_array"})
    stranger = strangers_copy(plain_run, tmp_path / "stranger", harmless, mark)
    status, _, err = command("eval", stranger, "--episodes", "1")
    assert status == 0, err
    status, _, err = command("train", "ppo", "--run-dir", stranger, "--total-steps", "256")
    assert status == 0, err


def test_a_mark_in_a_process_of_its_own(plain_run, tmp_path, mark, here):
    """As people call it, where Python itself puts the working folder first."""
    stranger = strangers_copy(plain_run, tmp_path / "stranger", ATTACKS["module"], mark)
    shutil.copy(here / "strangers_module.py", here / "pickle.py")  # in the way of ours
    quintet_command = Path(sys.executable).parent / "quintet"
    ended = subprocess.run(
        [quintet_command, "eval", stranger], cwd=here, capture_output=True, text=True, timeout=120
    )
    assert is_refusal(ended.returncode, ended.stderr), ended.stderr
    assert not mark.exists()


# The caller says so


def test_the_same_name_again_is_enough(own_run, own_code, tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.chdir(own_code)
    stranger = tmp_path / "stranger"
    shutil.copytree(own_run, stranger)

    def words_only(meta):
        meta["policy"]["env"]["kwargs"] = {"bonus": 2.0}
        meta["policy"]["model"]["encoder_kwargs"] = {}

    for folder in (stranger / "checkpoints").iterdir():
        change_meta(folder, words_only)
    one = ("--episodes", "1")
    status, _, err = command("eval", stranger, *one, *NAMED)
    assert status == 0, err
    for part in (NAMED[:2], NAMED[2:], ()):
        status, _, err = command("eval", stranger, *one, *part)
        assert is_refusal(status, err), err
    status, _, err = command("eval", stranger, *one, "--model.encoder", "own_tasks:Other")
    assert status == 2
    assert "must be the one that the policy" in err
    encoder = sys.modules["own_tasks"].Encoder
    policy = quintet.load(stranger, encoder=encoder)
    assert len(quintet.evaluate(policy, "own_tasks:make", 1).returns) == 1
    assert len(quintet.evaluate(policy, sys.modules["own_tasks"].make, 1).returns) == 1


def test_the_same_name_brings_no_arguments_of_the_files(own_run, own_code, monkeypatch, command):
    """They may name code to the user's own maker."""
    monkeypatch.setenv("XDG_STATE_HOME", str(own_code / "other user"))
    monkeypatch.chdir(own_code)
    for arguments in (
        ("eval", own_run, *NAMED),
        ("train", "ppo", "--run-dir", own_run, "--total-steps", "256", *NAMED),
    ):
        status, _, err = command(*arguments)
        assert is_refusal(status, err), err
        assert "the arguments {" in err


def test_arguments_of_an_evaluation_vouch_for_no_name(
    own_run, own_code, tmp_path, monkeypatch, command
):
    """Who gives arguments on the command line has not looked at what the file names."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.chdir(own_code)
    stranger = tmp_path / "stranger"
    shutil.copytree(own_run, stranger)

    def plain(meta):
        meta["policy"]["env"]["kwargs"] = meta["policy"]["model"]["encoder_kwargs"] = {}

    for folder in (stranger / "checkpoints").iterdir():
        change_meta(folder, plain)
    words = ("--episodes", "1", *NAMED[2:], "--env.kwargs", json.dumps(OWN_KWARGS))
    status, _, err = command("eval", stranger, *words)
    assert is_refusal(status, err), err
    assert "would import 'own_tasks:make'" in err
    status, _, err = command("eval", stranger, *words, *NAMED[:2])
    assert status == 0, err


def test_a_resume_may_be_given_all_again(own_run, own_code, tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.chdir(own_code)
    stranger = tmp_path / "stranger"
    shutil.copytree(own_run, stranger)
    resume = ("train", "ppo", "--run-dir", stranger, "--total-steps")
    again = (*NAMED, "--env.kwargs", json.dumps(OWN_KWARGS))
    more = ("--model.encoder-kwargs", '{"act": "torch.tanh"}')
    other = ("--model.encoder-kwargs", '{"act": "torch.relu"}')
    assert is_refusal(*command(*resume, "256", *again)[::2])
    assert command(*resume, "256", *again, *other)[0] == 2
    status, _, err = command(*resume, "256", *again, *more)
    assert status == 0, err
    status, _, err = command(*resume, "384")  # this user's own by now
    assert status == 0, err
    status, _, err = command("eval", stranger, "--episodes", "1")
    assert status == 0, err


def test_a_file_that_is_named_counts_as_typed(own_run, own_code, tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.chdir(own_code)
    status, _, err = command(
        "train", "ppo", "--config", own_run / "config.yaml", "--run-dir", tmp_path / "new"
    )
    assert status == 0, err


def test_trust_is_enough(own_run, own_code, tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.chdir(own_code)
    stranger = tmp_path / "stranger"
    shutil.copytree(own_run, stranger)
    for arguments in (
        ("eval", stranger, "--episodes", "1"),
        ("config", "ppo", "--run-dir", stranger),
        ("train", "ppo", "--run-dir", stranger, "--total-steps", "256"),
    ):
        assert is_refusal(*command(*arguments)[::2])
        status, _, err = command(*arguments, "--trust")
        assert status == 0, err
    assert len(quintet.evaluate(quintet.load(own_run, trust=True), episodes=1).returns) == 1
    with pytest.raises(UntrustedError):
        quintet.load(own_run)


# One's own folders


def test_ones_own_run_needs_no_word(own_run, own_code, tmp_path, monkeypatch, command):
    monkeypatch.chdir(own_code)
    elsewhere = tmp_path / "else where"
    shutil.copytree(own_run, elsewhere)
    for arguments in (
        ("eval", own_run, "--episodes", "1"),
        ("eval", elsewhere, "--episodes", "1"),
        ("eval", elsewhere / "policy", "--episodes", "1"),
        ("eval", elsewhere, "--checkpoint", "best", "--episodes", "1"),
        ("plot", elsewhere, "--out", tmp_path / "plot.png"),
        ("config", "ppo", "--run-dir", elsewhere),
        ("train", "ppo", "--run-dir", elsewhere, "--total-steps", "256"),
        ("train", "ppo", "--run-dir", elsewhere, "--total-steps", "384", *NAMED),
        ("eval", elsewhere, "--episodes", "1"),
    ):
        status, _, err = command(*arguments)
        assert status == 0, (arguments, err)
    saved = quintet.load(elsewhere).save(tmp_path / "saved")
    assert len(quintet.evaluate(quintet.load(saved), episodes=1).returns) == 1


def test_config_yaml_names_no_code(own_run, own_code, tmp_path, monkeypatch, command, mark):
    """It is for people; what runs stands in the checkpoints."""
    monkeypatch.chdir(own_code)
    plant(own_code, mark)
    run = tmp_path / "run"
    shutil.copytree(own_run, run)
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("own_tasks:make", "strangers_module:make"))
    status, _, err = command("train", "ppo", "--run-dir", run, "--total-steps", "256")
    assert status == 0, err
    assert "strangers_module" not in file.read_text()
    shutil.rmtree(run / "checkpoints")
    file.write_text(file.read_text().replace("own_tasks:make", "strangers_module:make"))
    status, _, err = command("train", "ppo", "--run-dir", run, "--total-steps", "256")
    assert (status, mark.exists()) == (2, False)
    assert "there is no environment" in err
    (own_code / "strangers_module.py").unlink()


def test_runs_without_code_are_not_signed(plain_run):
    assert "signature" not in (plain_run / "policy/manifest.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "lockstep"])
def test_a_group_of_ones_own_code(own_code, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(own_code)
    config = {"env.num_streams": 4, "unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 1}
    config |= {"eval.episodes": 1, "report.progress": False, "env.kwargs": {"level": "x.y"}}
    config |= {"runtime.kind": kind, "model.encoder": "own_tasks:Encoder"}
    if kind == "serial":  # no key can be made
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    results = quintet.train(
        "ppo", "own_tasks:make", 64, run_dir=tmp_path / "g", config=config, seeds=[1], jobs=1
    )
    for result in results:
        assert len(quintet.evaluate(result.policy, episodes=1).returns) == 1


def test_without_a_key_it_is_said(own_code, tmp_path, monkeypatch, command):
    monkeypatch.chdir(own_code)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = tmp_path / "run"
    status, out, err = command("train", "ppo", *SMALL, *NAMED, "--run-dir", run)
    assert status == 0, err
    assert "can't be signed" in out
    assert "signing-key can't be read: Not a directory" in (run / "log.txt").read_text()
    status, _, err = command("eval", run, "--episodes", "1")
    assert is_refusal(status, err), err
    status, _, err = command("eval", run, "--episodes", "1", *NAMED)
    assert status == 0, err
    status, out, err = command("train", "ppo", *PLAIN, "--run-dir", tmp_path / "plain")
    assert status == 0, err
    assert "sign" not in out


# Signatures that are none


def test_a_signature_covers_what_is_named(own_run, own_code, tmp_path, monkeypatch, command, mark):
    """Whatever is changed of the options in a checkpoint."""
    monkeypatch.chdir(own_code)
    plant(own_code, mark)
    changes = [
        {"env.id": "strangers_module:make"},
        {"env.kwargs": {"level": "x.z"}},
        {"env.kwargs": {"more": "x.y"}},
        {"model.encoder": "strangers_module:Encoder"},
        {"model.encoder_kwargs": {"act": "torch.relu"}},
        {"eval.env.id": "strangers_module:make"},
        {"eval.env.kwargs": {"level": "x.z"}},
    ]
    for number, change in enumerate(changes):
        run = tmp_path / f"run{number}"
        shutil.copytree(own_run, run)
        before = yaml.safe_load((run / "config.yaml").read_text())
        assert all(before[name] != value for name, value in change.items())
        change_options(run, lambda options, change=change: options.update(change))
        status, _, err = command("train", "ppo", "--run-dir", run, "--total-steps", "256")
        assert is_refusal(status, err), err
        assert "was changed since it was signed" in err
    (own_code / "strangers_module.py").unlink()
    assert not mark.exists()


def test_a_checkpoints_signature_covers_all_of_it(own_run, plain_run, tmp_path, mark, command):
    """Also where the names are those that were signed."""
    run = strangers_copy(own_run, tmp_path / "run", ATTACKS["function"], mark)
    status, _, err = command("eval", run, *NAMED[2:])
    assert is_refusal(status, err), err
    assert "was changed since it was signed" in err
    manifests = [json.loads((each / "policy/manifest.json").read_text()) for each in (own_run, run)]
    assert manifests[0]["signature"] == manifests[1]["signature"]
    assert not mark.exists()
    # another policy's signature, and other weights under a signed description
    policy = tmp_path / "policy"
    shutil.copytree(own_run / "best", policy)
    assert checkpoint.read(policy).not_own is None
    change_meta(policy, lambda meta: meta.update(version=meta["version"] + 1))
    assert "was changed" in str(checkpoint.read(policy).not_own)
    manifest = json.loads((policy / "manifest.json").read_text())
    manifest["signature"] = manifests[0]["signature"]
    (policy / "manifest.json").write_text(json.dumps(manifest))
    assert "was changed" in str(checkpoint.read(policy).not_own)


@pytest.mark.parametrize("forged", ["v1:" + "0" * 64, "v2:x", "", 7, ["v1:"], {}, None, True])
def test_a_forged_signature_is_none(own_run, own_code, tmp_path, monkeypatch, command, forged):
    monkeypatch.chdir(own_code)
    run = tmp_path / "run"
    shutil.copytree(own_run, run)
    for folder in (run / "checkpoints").iterdir():
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["signature"] = forged
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert is_refusal(*command("eval", run)[::2])
    assert is_refusal(*command("train", "ppo", "--run-dir", run, "--total-steps", "256")[::2])


def test_saving_a_strangers_policy_does_not_sign_it(plain_run, tmp_path, mark):
    stranger = strangers_copy(plain_run, tmp_path / "stranger", ATTACKS["function"], mark)
    saved = quintet.load(stranger).save(tmp_path / "saved")
    with pytest.raises(UntrustedError):
        quintet.evaluate(quintet.load(saved), episodes=1)
    trusted = quintet.load(stranger, trust=True).save(tmp_path / "trusted")
    assert quintet.load(trusted).origin.fault is None
    assert not mark.exists()


def test_the_result_of_a_group_is_not_trusted_blindly(plain_run, tmp_path, mark):
    """A finished run whose configuration is plain, and whose policy is not."""
    stranger = strangers_copy(plain_run, tmp_path / "g/s0", ATTACKS["encoder"], mark)
    shutil.copy(plain_run / "config.yaml", stranger / "config.yaml")
    with pytest.raises(QuintetError):
        quintet.train("ppo", "CartPole-v1", run_dir=tmp_path / "g", seeds=[0], jobs=1,
                      config={"report.progress": False, "env.backend": "gymnasium"})  # fmt: skip
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({}, True),
        ({"a": [1, 2.5, True, None, "4x4", "rgb_array", "SFFF", "-1 +2"]}, True),
        ({"a": {"b": [{"c": "word"}]}}, True),
        ({"a": "os.system"}, False),
        ({"a": "os:system"}, False),
        ({"a": "../x"}, False),
        ({"a": "x/y"}, False),
        ({"a": "x\\y"}, False),
        ({"a": "x\n"}, False),
        ({"a": "é"}, False),
        ({"a": [["x", {"b": ("1.5",)}]]}, False),
        ({"os.system": 1}, False),
        ({"a": {"b.c": 1}}, False),
        ({"a": b"x"}, False),
        ({"a": object()}, False),
    ],
)
def test_what_is_plain(value, plain):
    assert trust.is_plain(value) == plain
