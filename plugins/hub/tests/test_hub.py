"""Push, pull and ``hf:REPO`` against a stand-in for the service; needs the package installed:
pytest plugins/hub.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from stand_in_helpers import READER, TOKEN, Hub

HUB = Hub()
os.environ |= {  # read when huggingface_hub is imported
    "HF_ENDPOINT": HUB.endpoint,
    "HF_HOME": tempfile.mkdtemp(),
    "HF_HUB_DISABLE_XET": "1",  # the stand-in has no store of that protocol
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_TOKEN": TOKEN,
}
pytest.importorskip("huggingface_hub")
pytest.importorskip("quintet_hub")

from quintet_hub import fetched, pushed  # noqa: E402

import quintet  # noqa: E402
from quintet.checkpoints import checkpoint  # noqa: E402
from quintet.commands.cli import main  # noqa: E402

REPO = "you/cartpole"
OWN = {
    *("README.md", "manifest.json", "meta.json", "policy.safetensors"),
    *("run.json", "config.yaml", "metrics.jsonl"),
}
CONFIG = {
    "report.progress": False,
    "eval.episodes": 3,
    "runtime.compile": "off",
    "env.num_streams": 2,
    "unroll_steps": 32,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    quintet.train("ppo", "CartPole-v1", 256, run_dir=folder, config=CONFIG)
    return folder


@pytest.fixture(autouse=True)
def _anew(tmp_path, monkeypatch):
    HUB.reset()
    fetched._KNOWN.clear()
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    monkeypatch.chdir(tmp_path)


def said(capsys, *words, status=1):
    """The error of a command; one line."""
    capsys.readouterr()
    assert main([*map(str, words)]) == status
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("error: "))
    return line.removeprefix("error: ")


def scores(capsys, *words):
    capsys.readouterr()
    assert main(["eval", *map(str, words), "--episodes", "3", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["returns"]


def push(run, *words):
    assert main(["push", str(run), REPO, *map(str, words)]) == 0
    return HUB.files(REPO)


def test_what_is_pushed(run, capsys):
    files = push(run)
    assert files.keys() - {".gitattributes"} == OWN
    out = capsys.readouterr().out
    for name in OWN:
        assert re.search(rf"^ +{len(files[name]):,} bytes  {name}$", out, re.M)
    for name in ("meta.json", "policy.safetensors", "manifest.json"):
        assert files[name] == (run / "policy" / name).read_bytes()
    assert not HUB.private
    assert main(["push", str(run), "you/own", "--private"]) == 0
    assert HUB.private == {"you/own"}


def test_files_of_this_machine_are_not_named(run, tmp_path):
    config = {**CONFIG, "init_from": run, "eval.episodes": 0}
    quintet.train("ppo", "CartPole-v1", 64, run_dir="run", config=config)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    of_files = {"seed": "file /home/me/x.yaml", "gamma": "saved run (file /home/me/y.yaml)"}
    record["sources"] |= of_files
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    files = push("run")
    pushed_record = json.loads(files["run.json"])
    assert pushed_record["sources"]["seed"] == "file"
    assert pushed_record["sources"]["gamma"] == "saved run (file)"
    for data in files.values():
        assert str(run.parent).encode() not in data
        assert str(tmp_path).encode() not in data


def test_the_card_is_that_of_the_run_s_last_evaluation(run):
    text, own = push(run)["README.md"].decode(), (run / "policy" / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert (header["library_name"], header["pipeline_tag"]) == ("quintet", "reinforcement-learning")
    assert {"reinforcement-learning", "ppo", "CartPole-v1"} <= {*header["tags"]}
    (last,) = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()][-1:]
    mean, std = last["eval/return_mean"], last["eval/return_std"]
    (result,) = header["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == f"{mean:.2f} +/- {std:.2f}"
    (score,) = (line for line in own.splitlines() if line.startswith("| score"))
    assert score in text.splitlines()
    assert f"mean return {mean:,.2f} (95% interval" in score
    assert "over 3 whole episodes of greedy actions" in score
    assert f'quintet.load("hf:{REPO}")\n' in text
    assert f"quintet eval hf:{REPO} " in text
    assert "this folder" not in text


def test_round_trip(run, tmp_path, capsys):
    push(run)
    expected = scores(capsys, run)
    assert scores(capsys, f"hf:{REPO}") == expected
    capsys.readouterr()
    assert main(["pull", REPO]) == 0
    assert capsys.readouterr().out == "cartpole\n"
    assert {each.name for each in (tmp_path / "cartpole").iterdir()} == OWN
    assert scores(capsys, "cartpole") == expected
    observation = np.full(4, 0.1, np.float32)
    values = [quintet.load(x).value(observation) for x in (run, f"hf:{REPO}", "cartpole")]
    assert values[0] == values[1] == values[2]
    assert main(["report", f"hf:{REPO}", "--out", "r.html"]) == 0
    assert "cartpole" in (tmp_path / "r.html").read_text()
    where = ["--format", "numpy", "--steps", "128"]
    assert main(["export", f"hf:{REPO}", "--out", "x", *where]) == 0
    files = push(run, "--export", "x")
    assert files["export/certificate.json"] == (tmp_path / "x" / "certificate.json").read_bytes()
    assert b"128 of 128 greedy" in files["README.md"]
    assert main(["pull", REPO, "again"]) == 0
    assert main(["verify", "again/export"]) == 0
    assert main(["push", "again", "you/third"]) == 0  # a pulled folder, whose card is for the new
    card = HUB.files("you/third")["README.md"].decode()
    assert (card.count("## Export"), card.count(REPO)) == (1, 0)
    assert push(run).keys() - {".gitattributes"} == OWN  # the export is gone with its claim


def test_the_state_of_environments_goes_with_the_policy(run, tmp_path, capsys):
    policy = quintet.load(run)
    policy.own_state = b'[{"seen": 7}]'
    policy.save(tmp_path / "normalised")
    assert "environments.safetensors" in push(tmp_path / "normalised")
    assert quintet.load(f"hf:{REPO}").own_state == policy.own_state
    policy.own_state = b'[{"password": "swordfish"}]'
    policy.save(tmp_path / "secret")
    told = "environments.safetensors must hold no password"
    assert told in said(capsys, "push", tmp_path / "secret", REPO)


def test_an_export_is_verified_when_it_is_pulled(run, tmp_path, capsys):
    assert main(["export", str(run), "--out", "x", "--format", "numpy", "--steps", "128"]) == 0
    good = push(run, "--export", "x")
    HUB.commit(REPO, {**good, "export/numpy.py": b"x"})
    assert main(["pull", REPO, "extra"]) == 0
    assert not (tmp_path / "extra" / "export" / "numpy.py").exists()
    HUB.commit(REPO, {**good, "export/certificate.json": b"{}"})
    assert "certificate.json" in said(capsys, "pull", REPO, "changed")


def test_a_run_begins_with_a_policy_of_the_hub(run, tmp_path):
    push(run)
    config = {**CONFIG, "init_from": f"hf:{REPO}", "eval.episodes": 0}
    for _ in range(2):  # the second finds its run again, also without the hub
        quintet.train("ppo", "CartPole-v1", 64, run_dir=tmp_path / "new", config=config)
        HUB.repos.clear()
        fetched._KNOWN.clear()
    assert yaml.safe_load((tmp_path / "new/config.yaml").read_text())["init_from"] == f"hf:{REPO}"
    assert re.search(r"begins with \d+ tensors of \S+/[0-9a-f]{40}/cartpole", (
        tmp_path / "new/log.txt"
    ).read_text())  # fmt: skip


def test_a_commit_stays_what_it_was(run, tmp_path):
    push(run)
    first = HUB.repos[REPO][-1][0]
    quintet.load(f"hf:{REPO}@{first}")
    quintet.train("ppo", "CartPole-v1", 64, run_dir=tmp_path / "other", config=CONFIG)
    push(tmp_path / "other")
    fetched._KNOWN.clear()
    HUB.requests.clear()
    old = quintet.load(f"hf:{REPO}@{first}")
    assert HUB.requests == []  # a commit that was fetched needs no service
    new = quintet.load(f"hf:{REPO}")
    assert old.publication.version != new.publication.version


def test_a_film_of_the_run_is_pushed(run, tmp_path, capsys):
    shutil.copytree(run, "run")
    (tmp_path / "run" / "film.mp4").write_bytes(b"a film")
    assert push("run")["replay.mp4"] == b"a film"
    (tmp_path / "run" / "film.mp4").unlink()
    (tmp_path / "run" / "film.mp4").symlink_to("/etc/hostname")
    assert "film.mp4 must be a file to be pushed, got a link" in said(capsys, "push", "run", REPO)


def test_a_saved_policy_has_no_score(run):
    text = push(run / "best")["README.md"].decode()
    assert HUB.files(REPO).keys() - {".gitattributes"} == OWN - {
        *("run.json", "config.yaml", "metrics.jsonl")
    }
    assert "The score is not known" in text
    assert "model-index" not in text


def test_what_is_not_pushed(run, tmp_path, capsys):
    shutil.copytree(run, "run")
    own = tmp_path / "run"
    must = "RUN must be a finished run or a saved policy, got "
    newest = sorted((own / "checkpoints").iterdir())[-1]
    assert said(capsys, "push", newest, REPO).startswith(f"{must}{newest}, which holds learner")
    assert said(capsys, "push", "none", REPO).startswith(f"{must}{tmp_path}/none, where there is n")
    record = json.loads((own / "run.json").read_text())
    (own / "run.json").write_text(json.dumps(record | {"state": "stopped"}))
    assert said(capsys, "push", own, REPO).startswith(f"{must}{own}, which is interrupted: train")
    (own / "run.json").write_text(json.dumps(record))
    tensors = own / "policy" / "policy.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + b"x")
    assert "is corrupted" in said(capsys, "push", own, REPO)
    tensors.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    tensors.symlink_to(tmp_path / "elsewhere")
    assert "must be an ordinary file" in said(capsys, "push", own, REPO)
    assert not HUB.repos


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "A1b2" * 8,
        "api_key: 0123456789abcdef",
        '"password": "correct horse"',
        "https://me:hunter22@example.org",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_secrets_are_not_pushed(run, capsys, secret):
    shutil.copytree(run / "policy", "policy")
    with open("policy/README.md", "a") as card:
        card.write(f"\n{secret}\n")
    told = said(capsys, "push", "policy", REPO)
    assert told.startswith("README.md must hold no password, key or token, got")
    assert secret not in told
    assert not HUB.repos


def test_words_that_are_no_secrets():
    for text in (b"api_key: null", b"secret_door: true", b"FetchTask-PickAndPlaceDense-v4", b"a@b"):
        pushed._require_no_secret("config.yaml", text)


def test_an_export_that_is_not_pushed(run, tmp_path, capsys, monkeypatch):
    policy = quintet.load(run)
    policy.export("x", "numpy", steps=128)
    named = {"algo": "ppo", "format": "numpy"}
    spaces = {name: policy.description[name] for name in ("observation_space", "action_space")}
    for other, told in (
        ({"format": "torch"}, "--export must be a program that runs no code when it is read"),
        ({"algo": "ddpg"}, "--export must be an export of the policy"),
        ({"action_space": {}}, "--export must be an export of the policy"),
    ):
        read = SimpleNamespace(interface=SimpleNamespace(**(named | spaces | other)))
        monkeypatch.setattr(pushed, "Read", lambda _, read=read: read)
        assert said(capsys, "push", run, REPO, "--export", "x").startswith(told)
    monkeypatch.undo()
    with open(tmp_path / "x/policy.npz", "ab") as program:
        program.write(b"x")
    assert "policy.npz" in said(capsys, "push", run, REPO, "--export", tmp_path / "x")


def test_hostile_repositories(run, tmp_path, capsys):
    good = dict(push(run))
    broken = {
        "../../.bashrc": "must hold files inside its folder, got '../../.bashrc'",
        "/etc/cron.d/x": "must hold files inside its folder",
        "export/../../x": "must hold files inside its folder",
        "a\\..\\x": "must hold files inside its folder",
        "weights.pkl": "may run code when they are read, got 'weights.pkl'",
        "deep/er/model.PT": "may run code when they are read, got 'deep/er/model.PT'",
    }
    for name, told in broken.items():
        HUB.commit(REPO, {**good, name: b"x"})
        for words in (["pull", REPO, "got"], ["eval", f"hf:{REPO}"]):
            assert told in said(capsys, *words)
    HUB.commit(REPO, {x: data for x, data in good.items() if x != "manifest.json"})
    assert "got a repository without manifest.json" in said(capsys, "pull", REPO, "got")
    HUB.commit(REPO, good)
    HUB.lies["policy.safetensors"] = 10**13
    assert "must have at most 4,294,967,296 bytes" in said(capsys, "pull", REPO, "got")
    HUB.lies.clear()
    changed = {
        "policy.safetensors": (good["policy.safetensors"][:-1] + b"x", "is corrupted"),
        "meta.json": (
            b"/etc/passwd",
            "bytes where the manifest says",
        ),  # git stores a link like this
        "manifest.json": (b"{}", "is damaged"),
    }
    for name, (data, told) in changed.items():
        HUB.commit(REPO, {**good, name: data})
        found = said(capsys, "pull", REPO, "got")
        assert told in found
        assert found.startswith(f"{REPO}/{name} ")
    listed = json.loads(good["manifest.json"])
    listed["files"]["../x.json"] = listed["files"]["meta.json"]
    HUB.commit(REPO, {**good, "manifest.json": json.dumps(listed).encode()})
    assert "must be made of letters" in said(capsys, "pull", REPO, "got")
    assert [each.name for each in tmp_path.iterdir()] == []


def test_files_of_others_are_not_downloaded(run, tmp_path):
    good = push(run)
    HUB.commit(REPO, {**good, "setup.py": b"x", "deep/er.txt": b"x", "export/a/b": b"x"})
    assert main(["pull", REPO]) == 0
    assert {each.name for each in (tmp_path / "cartpole").iterdir()} == OWN


@pytest.mark.parametrize("part", ["env", "model"])
def test_code_is_not_taken_unless_it_is_allowed(part, run, tmp_path, capsys):
    (tmp_path / "others_code.py").write_text("open('ran', 'w')\n")
    found = checkpoint.read(run / "policy")
    name = {"env": "id", "model": "encoder"}[part]
    found.meta["policy"][part][name] = "others_code:make"
    checkpoint.write(tmp_path, "evil", found.tensors, found.meta)
    assert main(["push", "evil", REPO]) == 0  # pushing runs nothing
    told = said(capsys, "pull", REPO, "got", status=2)
    told_of = {"env": "env", "model": "model.encoder"}[part]
    assert told.startswith(
        f"{REPO} must name no code to be pulled, got {told_of} 'others_code:make': give --trust"
    )
    assert not (tmp_path / "got").exists()
    assert "code is run only from files that this user made" in said(
        capsys, "eval", f"hf:{REPO}", status=2
    )
    assert main(["pull", REPO, "got", "--trust"]) == 0
    assert "code is run only from files that this user made" in said(
        capsys, "eval", "got", status=2
    )
    assert not (tmp_path / "ran").exists()
    assert "others_code" not in sys.modules


def test_code_of_this_user_is_taken(run, tmp_path):
    found = checkpoint.read(run / "policy")
    found.meta["policy"]["env"]["id"] = "own_code:make"
    checkpoint.write(tmp_path, "own", found.tensors, found.meta, signed=True)
    assert main(["push", "own", REPO]) == 0
    assert main(["pull", REPO, "got"]) == 0


def test_code_in_the_options_is_not_taken(run, capsys):
    files = push(run)
    options = files["config.yaml"].decode().replace("env.id: CartPole-v1", "env.id: other:make")
    HUB.commit(REPO, {**files, "config.yaml": options.encode()})
    assert "got env 'other:make'" in said(capsys, "pull", REPO, "got", status=2)


def test_a_folder_that_is_in_use(run, tmp_path, capsys):
    push(run)
    (tmp_path / "cartpole").mkdir()
    assert main(["pull", REPO]) == 0
    assert "DIR must be new or empty" in said(capsys, "pull", REPO, status=2)


def test_what_the_hub_refuses(run, capsys, monkeypatch):
    assert "REPO must be a model on the hub that you may read, got you/none" in said(
        capsys, "eval", "hf:you/none"
    )
    push(run)
    assert said(capsys, "pull", f"{REPO}@v2", "got") == (
        f"{REPO} must have the revision 'v2', it has none"
    )
    for token in ("wrong", READER):
        monkeypatch.setenv("HF_TOKEN", token)
        told = said(capsys, "push", run, REPO)
        assert told.startswith(f"your token must have the right to {REPO}, the hub refuses it (")
        assert token not in told
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in said(capsys, "push", run, REPO)
    assert len(HUB.repos[REPO]) == 2
    for name in ("", "a/b/c", "../x", "you/x@", "-x/y", "you/a..b"):
        assert said(capsys, "eval", f"hf:{name}").startswith("REPO must be NAME/MODEL or NAME/MO")


def command(*words, **environ):
    words = [sys.executable, "-m", "quintet", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, env=os.environ | environ, **pipes)


def test_a_hub_that_does_not_answer(run):
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    for words in (["push", run, REPO], ["eval", f"hf:{REPO}"], ["pull", REPO]):
        with command(*words, **nobody) as process:
            out = process.communicate(timeout=60)[0]
        assert process.returncode == 1
        told = out.splitlines()[-1]
        assert told.startswith(f"error: the hub at http://127.0.0.1:9 must answer for {REPO}, got ")
        assert "Traceback" not in out


def test_ctrl_c_leaves_the_repository_as_it_was(run):
    push(run)
    shutil.copytree(run, "run")
    for name in ("film.mp4", "policy/README.md"):
        with open(f"run/{name}", "ab") as changed:
            changed.write(b"more")
    before = len(HUB.repos[REPO])
    HUB.stalls = True
    with command("push", "run", REPO) as process:
        assert HUB.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=5)[0]
    assert process.returncode == 130
    assert out.splitlines()[-1] == "interrupted"
    assert len(HUB.repos[REPO]) == before


def test_arguments_that_are_missing(capsys):
    for words in (["push"], ["push", "run"], ["pull"]):
        assert f"quintet {words[0]} must get a" in said(capsys, *words, status=2)
    assert "leave @main out" in said(capsys, "push", "run", f"{REPO}@main", status=2)
