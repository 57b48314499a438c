"""The page's modules, each tested alone: the model of a conversation, and the words for every ending."""

import itertools
import json

import msgspec

from interlock.core.names import Ending, LimitOf, Principal, RunId
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE, client_words
from page.scene import Visit

MODEL = """async () => {
    const { Conversation } = await import("/web/model.js");
    let position = 0;
    const event = (run_id, type, data = {}) => ({ run_id, at: ++position, position, data: { type, ...data } });
    const heard = (model, ...told) => model.take(event(...told)).map(({ run }) => run.id);
    const receipt = (drain, ...ids) => ({ receipt: { drain, cause: "stopped", runs: ids.map((id) => ({ id })) } });
    const outcome = (run_id, ending) => ({ outcome: { run_id, ending } });
    const turn = (model, id) => {
        heard(model, id, "message", { text: id, by: "ann" });
        heard(model, id, "started");
        heard(model, id, "ended", outcome(id, "completed"));
    };
    const seen = {};

    const model = new Conversation("s");
    seen.unknown = [];
    const strangers = ["delta", "block", "tool", "process", "question", "child", "typing", "progress", "phase"];
    for (const kind of strangers) seen.unknown.push(...heard(model, "r-1-1", kind, { text: "boo" }));
    seen.unknown.push(...heard(model, "r-1-1", "ended", outcome("r-1-1", "completed")));
    seen.unknown.push(...heard(model, null, "receipt", receipt("pending", "r-1-1")));
    seen.unknown.push(...heard(model, null, "correction", outcome("r-1-1", "lost")), ...model.runs.keys());

    heard(model, "r-1-2", "message", { text: "go", by: "ann" });
    heard(model, "r-1-2", "started");
    heard(model, "r-1-2", "delta", { text: "so far" });
    heard(model, "r-1-2", "ended", { ...outcome("r-1-2", "stopped"), cut: "so far" });
    const run = model.runs.get("r-1-2");
    const before = JSON.stringify(run);
    seen.late = ["message", "started", ...strangers].flatMap((kind) => heard(model, "r-1-2", kind, { text: "late" }));
    seen.late.push(...heard(model, "r-1-2", "ended", outcome("r-1-2", "completed")));
    seen.sealed = JSON.stringify(run) === before && !model.busy;

    seen.proved = heard(model, null, "receipt", receipt("pending", "r-1-2"));
    seen.grown = heard(model, null, "receipt", receipt("observed", "r-1-2"));
    seen.drain = run.receipt.drain;
    seen.corrected = heard(model, null, "correction", outcome("r-1-2", "lost"));
    seen.ending = [run.outcome.ending, run.corrected, run.state];

    const long = new Conversation("s"), older = new Conversation("s");
    const ids = Array.from({ length: 6 }, (_, index) => `r-2-${index + 1}`);
    for (const id of ids) turn(long, id);
    seen.gone = long.forget(4).map((each) => each.id);
    seen.kept = [...long.order];
    seen.forgotten = heard(long, ids[0], "delta", { text: "late" });
    for (const id of ids.slice(1, 5)) turn(older, id); // one of them is shown still
    seen.back = long.precede(older).map((each) => each.id);
    seen.order = [...long.order];
    seen.shown = long.order.every((id) => long.shows(id) && long.runs.get(id).said[0].text === id);
    return seen;
}"""


LIMITS = (None, 0, 1, 999, 1_000, 1_001, 1_500, 60_000, 61_000, 90_500, 3_600_000, 86_400_000)
ERRORS = (
    *(None, "", " ", "\n", "short", "first\nsecond", "first\r\nsecond", "one\rtwo", "\n\n  late\nlater", "an end \t "),
    *(
        "page\x0cbreak",
        "v\x0bt",
        "unit\x1cseparator",
        "next\x85line",
        "line\u2028end",
        "no\u00a0break",
        "{by} {why} $& $1",
    ),
    *("x" * 199, "x" * 200, "x" * 201, "x" * 5_000, "x" * 199 + " y", "x" * 200 + "\ny"),
    *("😀" * 199, "😀" * 200, "😀" * 300, "x" + "😀" * 300),
)


def test_the_model_seals_forgets_and_corrects(visit: Visit) -> None:
    """The model ignores unknown runs and late events, restores forgotten turns, and takes receipts and corrections."""
    page = visit.tab()
    page.goto(visit.base)
    seen = page.evaluate(MODEL)
    assert seen["unknown"] == []
    assert seen["late"] == []
    assert seen["sealed"]
    assert (seen["proved"], seen["grown"], seen["drain"]) == (["r-1-2"], ["r-1-2"], "observed")
    assert seen["corrected"] == ["r-1-2"]
    assert seen["ending"] == ["lost", True, "ended"]
    turns = [f"r-2-{number}" for number in range(1, 7)]
    assert (seen["gone"], seen["kept"]) == (turns[:4], turns[4:])
    assert seen["forgotten"] == []
    assert (seen["back"], seen["order"]) == (turns[1:4], turns[1:])
    assert seen["shown"]


def test_the_page_has_the_words_that_everybody_has(visit: Visit) -> None:
    """The page writes every ending, with every fact its words may hold, as core/projection does."""
    outcomes = [
        Outcome(
            run_id=RunId("r-1-1"),
            ending=ending,
            by=Principal(by) if by is not None else None,
            superseded_by=RunId(successor) if successor else None,
            phase=phase,
            limit_ms=limit,
            limit_of=whose,
            error=error,
        )
        for ending, by, successor, phase, whose, (limit, error) in itertools.product(
            TABLE,
            (None, "", "ann"),
            (None, "r-1-2"),
            (None, "", "provider"),
            (None, *LimitOf),
            itertools.zip_longest(LIMITS, ERRORS),
        )
    ]
    outcomes += [
        Outcome(run_id=RunId("r-1-1"), ending=Ending.STOPPED, by=Principal("ann"), born_stopped=True),
        Outcome(run_id=RunId("r-1-1"), ending=Ending.SUPERSEDED, by=Principal("ann"), unkept=True),
    ]
    assert {outcome.ending for outcome in outcomes} == set(Ending) - {Ending.PENDING, Ending.UNKNOWN}
    page = visit.tab()
    page.goto(visit.base)
    said = page.evaluate(
        """async (outcomes) => {
            const { ending } = await import("/web/words.js");
            return JSON.stringify(JSON.parse(outcomes).map(ending));
        }""",
        json.dumps(msgspec.to_builtins(outcomes)),
    )
    for outcome, words in zip(outcomes, json.loads(said), strict=True):
        assert words == client_words(outcome), outcome
