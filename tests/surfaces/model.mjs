// Reads histories from the input as JSON, by name; writes what the page's model makes of each, as core/vectors.py does.
// The address of the model is the argument.

const { Conversation } = await import(process.argv[2]);

let input = "";
for await (const piece of process.stdin) input += piece;

const BRIEF = {
  tool: ({ call_id: id, state }) => [id, state],
  question: ({ question_id: id, state }) => [id, state],
  process: ({ command, state }) => [command, state],
  child: ({ child, outcome }) => [child, outcome?.ending ?? null],
  typing: ({ on }) => [on],
  ended: ({ outcome }) => [outcome.ending],
};

const brief = (data) => [data.type, ...(BRIEF[data.type]?.(data) ?? [])];
const parts = (run, kind) => run.parts.filter((part) => part.kind === kind);
const open = (part) => ["pending", "running", "open"].includes(part.state);

function step(model, event) {
  const own = model.take(event).filter(({ run, data }) => run.id === event.run_id && data.type !== "delta");
  const run = model.runs.get(event.run_id);
  return { changes: own.map(({ data }) => brief(data)), texts: run ? parts(run, "text").map((part) => part.text) : [] };
}

function stands(run) {
  return {
    said: run.said.length + parts(run, "said").length,
    started: run.startedAt,
    open_calls: parts(run, "tool").filter(open).map((part) => part.call),
    open_questions: parts(run, "question").filter(open).map((part) => part.id),
    children: Object.fromEntries(parts(run, "child").map((part) => [part.id, part.outcome?.ending ?? null])),
    processes: parts(run, "process").map(({ command, name, status }) => [command, name, status]),
    typing: run.typing,
    ending: run.outcome?.ending ?? null,
    drain: run.receipt?.drain ?? null,
  };
}

const out = {};
for (const [name, events] of Object.entries(JSON.parse(input))) {
  const model = new Conversation("s");
  const told = events.map((event) => step(model, event));
  const runs = Object.fromEntries([...model.runs].map(([id, run]) => [id, stands(run)]));
  out[name] = { told, runs, order: model.order };
}
process.stdout.write(JSON.stringify(out));
