"""Several policies in the same environments."""

from types import SimpleNamespace

from quintet.runtime.policies import Assignment, PolicyMix
from quintet.types import Publication


def test_a_mix_gives_a_publication_to_its_policy_alone() -> None:
    loaded: list[tuple[int, int]] = []
    actors = [
        SimpleNamespace(
            load=lambda publication, k=k: loaded.append((k, publication.version)),
            action_spec=None, state_specs={}, record_specs={},
        )
        for k in range(3)
    ]  # fmt: skip
    mix = PolicyMix(actors, Assignment(3, mixed=True))  # type: ignore[arg-type]
    mix.load(Publication(5, {}, policy=2))
    mix.load(Publication(7, {}, policy=0))
    assert loaded == [(2, 5), (0, 7)]
    assert mix.versions == [7, -1, 5]
