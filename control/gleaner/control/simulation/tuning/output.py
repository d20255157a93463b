"""The answer of `glean simulate tune` for people and programs: its table, its page, its JSON and its settings files."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from gleaner.control.simulation.metrics.tables import Table, duration, percent, shortest
from gleaner.control.simulation.report.page import (
    Axis,
    Card,
    Cards,
    Code,
    Curve,
    Lines,
    Page,
    Part,
    Points,
    Section,
    Text,
    Unit,
)
from gleaner.control.simulation.tuning.evidence import Interval, exact
from gleaner.control.simulation.tuning.trial import safety
from gleaner.control.simulation.tuning.tune import Tried, Tuning

_WIDTH = 96
"""The width of a comment in a settings file."""


def best_margins(tuning: Tuning) -> tuple[Tried, ...]:
    """Return each setting with its best margin, that of the highest effective load, in the order of the settings."""
    best: dict[tuple[bool, float, bool], Tried] = {}
    for one in tuning.tried:
        kind = one.evidence.setting.kind
        if kind not in best or one.evidence.effective_load.mean > best[kind].evidence.effective_load.mean:
            best[kind] = one
    return tuple(best.values())


def table(tuning: Tuning, tried: Sequence[Tried] | None = None) -> Table:
    """Return a table of loads and waits by setting, by default with the best margin of each setting."""
    shown = best_margins(tuning) if tried is None else tried
    limit, chosen = tuning.question.limit, tuning.recommendation.setting

    def mark(one: Tried) -> str:
        is_chosen = one.evidence.setting == chosen
        return "recommended" if is_chosen else "within" if limit.holds(one.evidence) else "past"

    columns: dict[str, Callable[[Tried], str]] = {
        "length": lambda one: exact(one.evidence.setting.length_s),
        "end": lambda one: "together" if one.evidence.setting.synchronised else "apart",
        "margin": lambda one: exact(one.evidence.setting.margin_s),
        "effective load": lambda one: percent(one.evidence.effective_load.mean),
        "more, points": lambda one: _points(one.evidence.gain),
        "mean wait": lambda one: _growth(limit.growth(one.evidence), limit.shown),
        "start later": lambda one: f"{percent(one.later, 0)}, by {duration(one.later_mean_s)}",
        "saves, restores": lambda one: percent(one.saving + one.restoring),
        "lost": lambda one: percent(one.lost),
        "seeds": lambda one: str(len(one.evidence.waits_s)),
        "wait limit": mark,
    }
    return Table.of(shown, columns, right=tuple(columns)[2:], title=_title(tuning))


def lines(tuning: Tuning) -> tuple[str, ...]:
    """Return the recommendation for the terminal."""
    control, agent, slurm = control_settings(tuning), agent_settings(tuning), slurm_words(tuning)
    if not (control and agent and slurm):
        return ("No setting is recommended.", *reasons(tuning))
    bare = [line for text in (control, agent) for line in text.splitlines() if line and not line.startswith("#")]
    margin = bare.pop()
    return (*reasons(tuning), slurm, "\n".join(bare), f"and for the agents: {margin}")


def reasons(tuning: Tuning) -> tuple[str, ...]:
    """Return the recommendation's reasons, and after the first of them who pays."""
    first, *others = tuning.recommendation.reasons
    one = named(tuning)
    pays = (
        f"{percent(one.later, 0)} of the regular jobs start later than without agents, by {duration(one.later_mean_s)} "
        f"on average and by more than {duration(one.later_p95_s)} for one in twenty of these; "
        f"{percent(one.earlier, 0)} start earlier."
    )
    return (first, pays, *others)


def named(tuning: Tuning) -> Tried:
    """Return the setting that is recommended, or else the nearest."""
    setting = tuning.recommendation.setting or tuning.recommendation.nearest
    return next(one for one in tuning.tried if one.evidence.setting == setting)


def _title(tuning: Tuning) -> str:
    wait, load = tuning.wait_without_s, tuning.load_without
    return f"without agents: load {percent(load.mean)}, mean wait {duration(wait.mean)}"


def _points(gain: Interval) -> str:
    return f"{100 * gain.mean:+.2f} ({100 * gain.low:.2f} to {100 * gain.high:.2f})"


def _growth(growth: Interval, shown: Callable[[float], str]) -> str:
    return f"{shown(growth.mean)} ({shown(growth.low)} to {shown(growth.high)})"


def notes(tuning: Tuning) -> tuple[str, ...]:
    """Return how the figures were made and what was assumed."""
    question = tuning.question
    return (
        f"Seeds {question.first_seed} to {question.first_seed + tuning.seeds - 1} are variants of {tuning.workload}: "
        f"{tuning.how.said}. All settings see the same variants; intervals are Student's t at "
        f"{100 * question.level:g} % over paired differences.",
        *(
            ()
            if question.seeds
            else (
                "A setting has no more seeds once it is surely past the limit or surely behind; “surely” holds at "
                f"{100 * question.level:g} % for all settings and all looks together (Bonferroni).",
            )
        ),
        f"One agent's save is expected to take {exact(question.save_s)}, with a relative standard deviation of "
        f"{percent(question.save_spread, 0)}; agents reserve {safety(question.save_spread):.2f} times that and the "
        "margin, and a save that needs more loses its slice.",
        f"No agent starts for less than {exact(question.slice_s)}. The low-priority queue never runs dry.",
        *(
            f"Left out, since it would compute nothing: {setting.said}."
            for setting in tuning.left_out
            if setting.margin_s == min(tuning.question.grid.margins_s)
        ),
    )


def odd(tuning: Tuning) -> tuple[str, ...]:
    """Return remarks on results that are no mistake and yet may not be what was meant."""
    if not tuning.never_started:
        return ()
    count = f"{tuning.never_started:.0f} jobs of a variant"
    return (f"{count}, on average, never start under {tuning.scheduler}; the waits are those of the others",)


def page(tuning: Tuning, subtitle: str, remarks: Sequence[str]) -> Page:
    """Return the report: what to set and why, the curves behind it, all figures, and how the figures were made."""
    recommendation = tuning.recommendation
    setting = recommendation.setting
    answer: list[Part] = [_cards(tuning), Points(reasons(tuning))]
    control, agent, slurm = control_settings(tuning), agent_settings(tuning), slurm_words(tuning)
    if control and agent and slurm:
        answer += [
            Text("For the control program (/etc/gleaner/gleaner.toml):"),
            Code(control),
            Text("For the agents (/etc/gleaner/agent.toml):"),
            Code(agent),
            Text(slurm),
        ]
    return Page(
        "What to set" if setting else "No setting keeps the limit",
        subtitle,
        (
            Section("Recommendation", answer),
            Section("By length", (_loads(tuning), _waits(tuning), table(tuning))),
            Section("By margin", (_margins(tuning),)),
            Section("All settings", (table(tuning, tuning.tried),), is_folded=True),
            Section("How it was done", (Points((*notes(tuning), *remarks)),)),
        ),
    )


def _cards(tuning: Tuning) -> Cards:
    recommendation, limit = tuning.recommendation, tuning.question.limit
    tried = named(tuning)
    one = tried.evidence
    setting = one.setting
    word = "" if recommendation.setting else "nearest: "
    ends = "one end for all" if setting.synchronised else "each its own end"
    return Cards(
        (
            Card("agents of", word + exact(setting.length_s), ends + (", vacated at once" * setting.preemption)),
            Card("margin", exact(setting.margin_s), "before the end, on top of a save and its safety"),
            Card("effective load", percent(one.effective_load.mean), f"{_points(one.gain)} points"),
            Card("mean wait changes by", limit.shown(limit.growth(one).mean), f"the limit is {limit.said}"),
            Card(
                "start later", percent(tried.later, 0), f"of regular jobs, by {duration(tried.later_mean_s)} on average"
            ),
        )
    )


def _kinds(tuning: Tuning) -> dict[str, list[Tried]]:
    """Return the curves over the length of agents: one for each way in which agents end."""
    curves: dict[str, list[Tried]] = {}
    for one in sorted(best_margins(tuning), key=lambda one: one.evidence.setting.length_s):
        label = "one end for all" if one.evidence.setting.synchronised else "each its own end"
        curves.setdefault(label, []).append(one)
    return curves


def _curves(tuning: Tuning, height: Callable[[Tried], Interval]) -> list[Curve]:
    curves: list[Curve] = []
    for label, found in _kinds(tuning).items():
        heights = [height(one) for one in found]
        curves.append(
            Curve(
                label,
                [one.evidence.setting.length_s for one in found],
                [one.mean for one in heights],
                [one.low for one in heights],
                [one.high for one in heights],
            )
        )
    return curves


_LENGTH = Axis("length of an agent", Unit.SECONDS, logarithmic=True)


def _loads(tuning: Tuning) -> Lines:
    without = tuning.load_without.mean
    return Lines(
        "Effective load against the length of an agent",
        _LENGTH,
        Axis("effective load", Unit.SHARE, from_zero=False),
        _curves(tuning, lambda one: one.evidence.effective_load),
        ((without, "without agents"),),
    )


def _waits(tuning: Tuning) -> Lines:
    limit = tuning.question.limit
    unit = Unit.SHARE if limit.is_share else Unit.SECONDS
    return Lines(
        "Growth of the mean wait of regular jobs",
        _LENGTH,
        Axis("growth of the mean wait", unit),
        _curves(tuning, lambda one: limit.growth(one.evidence)),
        ((limit.most, "the limit"),),
    )


def _margins(tuning: Tuning) -> Table:
    """Return a table of the effective load by length and margin, of synchronised agents where such were tried."""
    synchronised = any(one.evidence.setting.synchronised for one in tuning.tried)
    shown = [one for one in tuning.tried if one.evidence.setting.synchronised == synchronised]
    margins_s = sorted({one.evidence.setting.margin_s for one in shown})
    loads = {(one.evidence.setting.length_s, one.evidence.setting.margin_s): one for one in shown}
    rows = [
        (
            exact(length_s),
            *(_load(loads.get((length_s, margin_s))) for margin_s in margins_s),
        )
        for length_s in sorted({length_s for length_s, _ in loads})
    ]
    ends = "one end for all" if synchronised else "each its own end"
    return Table(
        ("length", *(f"margin {exact(margin_s)}" for margin_s in margins_s)),
        tuple(rows),
        f"effective load and the share lost in late saves; {ends}",
    )


def _load(one: Tried | None) -> str:
    return "" if one is None else f"{percent(one.evidence.effective_load.mean)} ({percent(one.lost)})"


def control_settings(tuning: Tuning) -> str | None:
    """Return `[rounds]` of the control program's file; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    lines = [
        "# Recommended by glean simulate tune.",
        *_comments(tuning.recommendation.reasons),
        "",
        "[rounds]",
        f"length_s = {shortest(setting.length_s)}",
        f"synchronised = {'true' if setting.synchronised else 'false'}",
        f"shortest_slice_s = {shortest(tuning.question.slice_s)}",
    ]
    return "\n".join(lines) + "\n"


def agent_settings(tuning: Tuning) -> str | None:
    """Return the settings of the agents' file; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    return f"# Recommended by glean simulate tune.\nmargin_s = {shortest(setting.margin_s)}\n"


def slurm_words(tuning: Tuning) -> str | None:
    """Return in one sentence what the agents' partition needs in slurm.conf; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    if not setting.preemption:
        return (
            "In slurm.conf, the agents' partition has PreemptMode=OFF; Slurm then never ends an agent before its time."
        )
    grace_s = 60 * math.ceil((tuning.question.save_s * safety(tuning.question.save_spread) + setting.margin_s) / 60)
    return (
        f"In slurm.conf, the agents' partition has PreemptMode=REQUEUE and GraceTime={max(60, grace_s)} "
        f"({exact(max(60, grace_s))}: a save with its safety and the margin)."
    )


def _comments(sentences: Sequence[str]) -> list[str]:
    """Return the sentences as comment lines, broken between words."""
    lines: list[str] = []
    for sentence in sentences:
        line = "#"
        for word in sentence.split():
            if len(line) + 1 + len(word) > _WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines.append(line)
    return lines


def as_json(tuning: Tuning) -> dict[str, object]:
    """Return everything as JSON for programs. Shares are shares of 1, times are seconds."""
    question, recommendation = tuning.question, tuning.recommendation
    needed = recommendation.seeds_needed
    return {
        "workload": tuning.workload,
        "scheduler": tuning.scheduler,
        "seeds": {"first": question.first_seed, "count": tuning.seeds, "variants": tuning.how.said},
        "confidence": question.level,
        "wait_limit": {"most": question.limit.most, "is_share": question.limit.is_share},
        "save_s": question.save_s,
        "save_spread": question.save_spread,
        "shortest_slice_s": question.slice_s,
        "never_started": tuning.never_started,
        "without_agents": {
            "effective_load": tuning.load_without,
            "mean_wait_s": tuning.wait_without_s,
        },
        "settings": [_json_of(one, tuning) for one in tuning.tried],
        "left_out": tuning.left_out,
        "recommendation": {
            "setting": recommendation.setting,
            "nearest": recommendation.nearest,
            "runner_up": recommendation.runner_up,
            "reasons": reasons(tuning),
            "is_settled": recommendation.is_settled,
            "seeds_needed": math.ceil(needed) if math.isfinite(needed) else None,
            "control_settings": control_settings(tuning),
            "agent_settings": agent_settings(tuning),
            "slurm": slurm_words(tuning),
        },
    }


def _json_of(one: Tried, tuning: Tuning) -> dict[str, object]:
    evidence = one.evidence
    waits = min(evidence.waits_without_s) > 0
    return {
        **asdict(evidence.setting),
        "within_limit": tuning.question.limit.holds(evidence),
        "effective_load": evidence.effective_load,
        "gain": evidence.gain,
        "wait_growth_s": evidence.wait_s,
        "wait_growth_share": evidence.wait_share if waits else None,
        "p95_wait_growth_s": one.p95_wait_s,
        "regular_load": one.regular_load,
        "saving": one.saving,
        "restoring": one.restoring,
        "lost": one.lost,
        "later": one.later,
        "earlier": one.earlier,
        "later_mean_s": one.later_mean_s,
        "later_p95_s": one.later_p95_s,
        "seeds": len(evidence.waits_s),
        "by_seed": {"effective_load": evidence.effective_loads, "mean_wait_s": evidence.waits_s},
    }
