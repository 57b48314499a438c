-- name: boot
-- Number a new start, higher than any before.
UPDATE facts SET value = value + 1 WHERE name = 'boot' RETURNING value;

-- name: was_clean
-- Whether the last boot was closed and not killed.
SELECT (SELECT value FROM facts WHERE name = 'boot') = (SELECT value FROM facts WHERE name = 'closed');

-- name: close_boot
-- Record that this boot was closed and everything it accepted is written.
UPDATE facts SET value = (SELECT value FROM facts WHERE name = 'boot') WHERE name = 'closed';

-- name: skip_epochs
-- After an unclean end: give no epoch that the server before may have published and not written. That was at most the
-- second after the highest.
UPDATE facts SET value = max(value, (SELECT coalesce(max(epoch), 0) FROM epochs)) + 2 WHERE name = 'epoch';

-- name: highest_epoch
-- The highest epoch that any session has.
SELECT max(value, (SELECT coalesce(max(epoch), 0) FROM epochs)) FROM facts WHERE name = 'epoch';

-- name: writer_right
-- The generation a session stands at; a write under an older one is refused.
SELECT generation FROM sessions WHERE id = ?;

-- name: keep_session
-- A generation only rises. The other columns are those of the latest generation, so a late write changes nothing.
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
-- The share with the highest position stands, in whatever order shares are written: a late write of a share cannot undo
-- a later unshare.
INSERT INTO shares (session, principal, may, at) VALUES (?, ?, ?, ?)
ON CONFLICT (session, principal) DO UPDATE SET may = excluded.may, at = excluded.at WHERE excluded.at >= at;

-- name: raise_session
-- Raise the generation of a session that is not in memory.
UPDATE sessions SET generation = generation + 1 WHERE id = ?;

-- name: admit_run
-- Admit a message, once, unless its key is another run's or was stopped.
INSERT INTO runs (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce)
WITH given (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
SELECT * FROM given WHERE key IS NULL OR NOT (
    EXISTS (SELECT 1 FROM keys used WHERE used.principal = given.principal AND used.key = given.key
        AND used.run_id NOT IN (given.id, coalesce(given.alias, given.id)))
    OR EXISTS (SELECT 1 FROM tombstones t WHERE t.principal = given.principal AND t.key = given.key))
ON CONFLICT (id) DO NOTHING;

-- name: used_key
-- The first use of a key.
SELECT principal, key, method, digest, run_id, generation, superseded FROM keys WHERE principal = ? AND key = ?;

-- name: end_run
-- Write an ending where none stands; `lost` is a guess and yields. A run that was never seated, in a session without a
-- row, loses its text and instructions: the session has no owner yet, and its first owner must not read them.
-- A receipt in the same decision is noted with the ending.
INSERT INTO runs (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce, receipt, drained)
WITH given (id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, ending, outcome, cut, told, instructions, announce, receipt, drained)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
SELECT given.id, session, principal, kind,
    CASE WHEN given.generation IS NULL AND sessions.id IS NULL THEN '' ELSE text END,
    admitted_at, key, deadline, parent, home, agent, detached, alias, given.generation, started, ending, outcome, cut, told,
    CASE WHEN given.generation IS NULL AND sessions.id IS NULL THEN NULL ELSE instructions END, announce, receipt, drained
FROM given LEFT JOIN sessions ON sessions.id = session
WHERE true
ON CONFLICT (id) DO UPDATE SET
    ending = excluded.ending,
    outcome = excluded.outcome,
    cut = excluded.cut,
    told = max(told, excluded.told),
    generation = coalesce(excluded.generation, generation),
    receipt = coalesce(excluded.receipt, receipt),
    drained = max(drained, excluded.drained)
WHERE ending IS NULL OR ending = 'lost';

-- name: found_outcome
-- The ending that stands.
SELECT outcome, drained FROM runs WHERE id = ?;

-- name: start_run
-- Set the started mark, before the agent's first step.
UPDATE runs SET started = 1 WHERE id IN (VALUES (?)) AND ending IS NULL;

-- name: alias_run
-- Alias a message to the run that absorbed it.
UPDATE runs SET alias = ?2 WHERE id = ?1 AND ending IS NULL;

-- name: keep_key
-- The first use of a key stands. The exception: the message was to be absorbed by the run that the key names, and then
-- ended by itself; the key now names the message's own run.
INSERT INTO keys (principal, key, method, digest, run_id, generation, superseded) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, key) DO UPDATE SET
    method = excluded.method,
    digest = excluded.digest,
    run_id = excluded.run_id,
    generation = excluded.generation,
    superseded = excluded.superseded
WHERE EXISTS (SELECT 1 FROM runs WHERE id = excluded.run_id AND alias = keys.run_id AND ending IS NOT NULL);

-- name: bury_key
-- Keep a tombstone: the key was stopped before its message arrived.
INSERT INTO tombstones (principal, key) VALUES (?, ?) ON CONFLICT (principal, key) DO NOTHING;

-- name: keep_tool
-- Keep the state of a tool call.
INSERT INTO tools (call_id, run_id, name, arguments, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (call_id) DO UPDATE SET state = excluded.state;

-- name: keep_question
-- The first answer stands, void and expired are final, and only the run's fall (void) overwrites an answer.
INSERT INTO questions (id, run_id, session, principal, text, choices, state, answer, "by")
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, answer = excluded.answer, "by" = excluded."by"
WHERE state = 'open' OR (state = 'answered' AND excluded.state = 'void');

-- name: keep_wake
-- Keep a schedule.
INSERT INTO wakes (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body;

-- name: remove_wake
-- Remove a schedule.
DELETE FROM wakes WHERE id = ?;

-- name: expire_marks
-- Before a new mark is added: delete marks that are too old, or that carry a time too far ahead because the clock was
-- set back since.
DELETE FROM marks WHERE session = ?1 AND channel = ?2 AND "by" = ?3 AND abs(?4 - stopped_at) >= ?5;

-- name: keep_mark
-- Keep a mark. `place` is its number as text that sorts as the number does.
INSERT INTO marks (session, channel, "by", place, at, stopped_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (session, channel, "by", place) DO UPDATE SET
    serial = (SELECT max(serial) + 1 FROM marks),
    at = CASE WHEN excluded.stopped_at > stopped_at THEN excluded.at ELSE at END,
    stopped_at = max(stopped_at, excluded.stopped_at);

-- name: cover_marks
-- Delete marks that a later stop at a later place covers.
DELETE FROM marks WHERE session = ?1 AND channel = ?2 AND "by" = ?3 AND EXISTS (
    SELECT 1 FROM marks other WHERE other.session = ?1 AND other.channel = ?2 AND other."by" = ?3
        AND other.place > marks.place AND other.stopped_at >= marks.stopped_at);

-- name: keep_stop
-- The first use of a stop's key stands.
INSERT INTO stops (principal, key, method, digest, at, receipt, aborted, already) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, key) DO NOTHING;

-- name: keep_receipt
-- Keep a receipt, or the later version of one: a receipt grows until everything is drained.
INSERT INTO receipts (id, pending, runless, body) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET pending = excluded.pending, runless = excluded.runless, body = excluded.body;

-- name: receipt_of_run
-- Note a run's receipt, so that the receipt is found by the run's id.
UPDATE runs SET receipt = column1, drained = max(drained, column2) FROM (VALUES (?, ?, ?)) WHERE id = column3;
