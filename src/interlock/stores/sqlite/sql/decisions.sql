-- name: boot
-- A new start: its number is higher than any before.
UPDATE facts SET value = value + 1 WHERE name = 'boot' RETURNING value;

-- name: was_clean
-- Whether the last boot was closed and not killed.
SELECT (SELECT value FROM facts WHERE name = 'boot') = (SELECT value FROM facts WHERE name = 'closed');

-- name: close_boot
-- This boot is closed: everything it took is in.
UPDATE facts SET value = (SELECT value FROM facts WHERE name = 'boot') WHERE name = 'closed';

-- name: writer_right
-- The generation a session stands at; a write under an older one is refused.
SELECT generation FROM sessions WHERE id = ?;

-- name: keep_session
-- A generation only rises; what else a session has is the latest generation's.
INSERT INTO sessions (id, owner, generation, strategy, since, renewed, crashes, announced)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    strategy = CASE WHEN excluded.generation >= generation THEN excluded.strategy ELSE strategy END,
    crashes = CASE WHEN excluded.generation >= generation THEN excluded.crashes ELSE crashes END,
    announced = CASE WHEN excluded.generation >= generation THEN excluded.announced ELSE announced END,
    generation = max(generation, excluded.generation),
    since = max(since, excluded.since),
    renewed = max(renewed, excluded.renewed);

-- name: keep_share
-- The latest word on who may do what in a session stands, whatever order the words come in.
INSERT INTO shares (session, principal, may, at) VALUES (?, ?, ?, ?)
ON CONFLICT (session, principal) DO UPDATE SET may = excluded.may, at = excluded.at WHERE excluded.at >= at;

-- name: raise_session
-- Raise a session that nobody has in memory.
UPDATE sessions SET generation = generation + 1 WHERE id = ?;

-- name: admit_run
-- A message is admitted once.
INSERT INTO runs (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: end_run
-- An ending is written where none stands; `lost` was a guess and yields. What ended before its session was anybody's
-- leaves no text: it is not for whoever founds that.
INSERT INTO runs (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce)
VALUES (?1, ?2, ?3, ?4, CASE WHEN ?14 IS NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?2) THEN '' ELSE ?5 END,
    ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    CASE WHEN ?14 IS NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?2) THEN NULL ELSE ?20 END, ?21)
ON CONFLICT (id) DO UPDATE SET
    ending = excluded.ending,
    outcome = excluded.outcome,
    cut = excluded.cut,
    told = max(told, excluded.told),
    generation = coalesce(excluded.generation, generation)
WHERE ending IS NULL OR ending = 'lost';

-- name: found_outcome
-- The ending that stands.
SELECT outcome, drained FROM runs WHERE id = ?;

-- name: start_run
-- The mark before the agent's first step.
UPDATE runs SET started = 1 WHERE id = ? AND ending IS NULL;

-- name: alias_run
-- A message that another run took in.
UPDATE runs SET alias = ?2 WHERE id = ?1 AND ending IS NULL;

-- name: keep_key
-- The first use stands, unless it named a run that the message was to be part of and then ended by itself.
INSERT INTO keys (principal, key, method, digest, run_id, generation, superseded) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, key) DO UPDATE SET
    method = excluded.method,
    digest = excluded.digest,
    run_id = excluded.run_id,
    generation = excluded.generation,
    superseded = excluded.superseded
WHERE EXISTS (SELECT 1 FROM runs WHERE id = excluded.run_id AND alias = keys.run_id AND ending IS NOT NULL);

-- name: bury_key
-- A key that was stopped before it was seen.
INSERT INTO tombstones (principal, key) VALUES (?, ?) ON CONFLICT (principal, key) DO NOTHING;

-- name: keep_tool
-- Where a tool call stands.
INSERT INTO tools (call_id, run_id, name, arguments, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (call_id) DO UPDATE SET state = excluded.state;

-- name: keep_question
-- The first answer stands; void and expired are for good; only the run's fall undoes an answer.
INSERT INTO questions (id, run_id, session, principal, text, choices, state, answer, "by")
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, answer = excluded.answer, "by" = excluded."by"
WHERE state = 'open' OR (state = 'answered' AND excluded.state = 'void');

-- name: keep_wake
-- A schedule.
INSERT INTO wakes (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body;

-- name: remove_wake
-- A schedule is gone.
DELETE FROM wakes WHERE id = ?;

-- name: expire_marks
-- What has stood for too long, or was made by a clock that has been set back since, counts no more beside a new mark.
DELETE FROM marks WHERE session = ?1 AND channel = ?2 AND "by" = ?3 AND abs(?4 - stopped_at) >= ?5;

-- name: keep_mark
-- `place` is the number written so that texts compare as their numbers do.
INSERT INTO marks (session, channel, "by", place, at, stopped_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (session, channel, "by", place) DO UPDATE SET
    serial = (SELECT max(serial) + 1 FROM marks),
    at = CASE WHEN excluded.stopped_at > stopped_at THEN excluded.at ELSE at END,
    stopped_at = max(stopped_at, excluded.stopped_at);

-- name: cover_marks
-- An earlier stop at an earlier place adds nothing to a mark.
DELETE FROM marks WHERE session = ?1 AND channel = ?2 AND "by" = ?3 AND EXISTS (
    SELECT 1 FROM marks other WHERE other.session = ?1 AND other.channel = ?2 AND other."by" = ?3
        AND other.place > marks.place AND other.stopped_at >= marks.stopped_at);

-- name: keep_stop
-- The first use of a stop's key stands.
INSERT INTO stops (principal, key, method, digest, at, receipt, aborted, already) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, key) DO NOTHING;

-- name: keep_receipt
-- A receipt grows until everything is drained.
INSERT INTO receipts (id, pending, runless, body) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET pending = excluded.pending, runless = excluded.runless, body = excluded.body;

-- name: receipt_of_run
-- The receipt that a run is found by.
UPDATE runs SET receipt = ?, drained = max(drained, ?) WHERE id = ?;
