"""An engine's firewall rules are recognised, and only they."""

from __future__ import annotations

from tests.deploy.firewall import removals

LISTED = [
    "-P FORWARD DROP",
    "-N DOCKER",
    "-N DOCKER-USER",
    "-N mine",
    "-A FORWARD -j DOCKER-USER",
    "-A FORWARD -s 10.0.0.0/8 -j DROP",
    "-A FORWARD -i br-0123456789ab -j ACCEPT",
    "-A DOCKER-USER -j RETURN",
]


def test_rules_go_before_their_chains() -> None:
    assert removals(LISTED) == [
        "-D FORWARD -j DOCKER-USER",
        "-D FORWARD -i br-0123456789ab -j ACCEPT",
        "-D DOCKER-USER -j RETURN",
        "-F DOCKER",
        "-F DOCKER-USER",
        "-X DOCKER",
        "-X DOCKER-USER",
    ]


def test_rules_of_others_stay() -> None:
    assert removals(["-P FORWARD ACCEPT", "-N mine", "-A FORWARD -i br-lan -j mine"]) == []
