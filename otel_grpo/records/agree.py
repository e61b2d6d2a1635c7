"""What the ranks of a job say together of one update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from otel_grpo.records.model import Contribution, Ranks, Update, UpdateStatus


class Verdict(NamedTuple):
    """As in an `Update`. ``ranks``: those that failed, or that did not speak or disagree."""

    status: UpdateStatus
    reason: str | None
    ranks: list[int]


def agree(shares: Sequence[Contribution], ranks: Ranks, k: int) -> Verdict:
    """The verdict on the k-th update: applied if every rank says so, skipped if all say that, failed
    if one failed, else unconfirmed.

    The first of `shares` speaks for every rank that is not missing and has no share of its own. An
    unconfirmed update keeps the reason of what was claimed, so that it can be judged again when the
    open ranks have spoken.
    """
    others = {share.rank for share in shares[1:]}
    first = set(range(ranks.expected)) - others - set(ranks.missing) | {shares[0].rank}
    said: list[tuple[int, Update]] = []
    silent = set(ranks.missing)
    for position, share in enumerate(shares):
        if len(share.attributes.updates) > k:
            said.append((share.rank, share.attributes.updates[k]))
        else:
            silent |= {share.rank} if position else first
    failed = [(rank, update) for rank, update in said if update.status == "failed"]
    if failed:
        who = {each for rank, update in failed for each in update.ranks or [rank]}
        return Verdict("failed", failed[0][1].reason, sorted(who))
    claim = _claim(said[0][1])
    for rank, update in said:
        if update.status == "unconfirmed":
            silent |= set(update.ranks or [rank])
        elif _claim(update) == claim:
            silent.discard(rank)
        else:
            silent.add(rank)
    reason = said[0][1].reason
    if silent:
        return Verdict("unconfirmed", reason, sorted(silent))
    return Verdict(claim, reason, [])


def _claim(update: Update) -> UpdateStatus:
    """What the rank says of itself: a skip always has a reason, an applied update never."""
    if update.status == "unconfirmed":
        return "applied" if update.reason is None else "skipped"
    return update.status
