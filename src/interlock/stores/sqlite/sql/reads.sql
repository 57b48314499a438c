-- name: load
-- All that must be known before a message is decided on: its session, the first use of its key, whether the key was
-- stopped before its message arrived, how the session's last turn ended (turns before the last reset are not part of this
-- transcript), where the session's stops stood in their own channels (a row for each of them), and its epoch (a child's
-- events count with its home, so its session has none of its own).
SELECT s.id, s.owner, s.generation, s.strategy, s.since, s.renewed, s.crashes, s.announced,
    (SELECT json_group_object(principal, may) FROM shares WHERE session = s.id AND may IS NOT NULL),
    k.principal, k.key, k.method, k.digest, k.run_id, k.generation, k.superseded,
    t.serial, r.outcome, r.drained, m.channel, m."by", m.at, m.stopped_at,
    max(coalesce((SELECT epoch FROM epochs WHERE session = asked.session),
            (SELECT max(position) >> 32 FROM events WHERE session = asked.session), 0),
        (SELECT value FROM facts WHERE name = 'epoch'))
FROM (SELECT ?1 AS session, ?2 AS principal, ?3 AS key) asked
    LEFT JOIN sessions s ON s.id = asked.session
    LEFT JOIN keys k ON k.principal = asked.principal AND k.key = asked.key
    LEFT JOIN tombstones t ON t.principal = asked.principal AND t.key = asked.key
    LEFT JOIN runs r ON r.serial = (SELECT serial FROM runs
        WHERE session = asked.session AND ending IS NOT NULL AND generation > coalesce(s.renewed, -1)
        ORDER BY generation DESC LIMIT 1)
    LEFT JOIN marks m ON m.session = asked.session
ORDER BY m.serial;

-- name: session
-- One session.
SELECT id, owner, generation, strategy, since, renewed, crashes, announced,
    (SELECT json_group_object(principal, may) FROM shares WHERE session = sessions.id AND may IS NOT NULL)
FROM sessions WHERE id = ?;

-- name: plain_sessions
-- Sessions whose id does not begin with their owner, although the owner writes the bare name.
SELECT owner, id FROM sessions WHERE plain = 1;

-- name: sessions
-- Sessions that people send to (not runs' own), the latest first, with the number of their runs and the time of the last
-- one: all of them, or those that a principal owns or that are shared with it.
SELECT s.id, s.owner, s.generation, s.strategy, s.since, s.renewed, s.crashes, s.announced,
    (SELECT json_group_object(principal, may) FROM shares WHERE session = s.id AND may IS NOT NULL),
    count(r.serial), sum(r.serial IS NOT NULL AND r.ending IS NULL AND r.alias IS NULL), max(r.admitted_at)
FROM sessions s LEFT JOIN runs r ON r.session = s.id
WHERE s.id NOT GLOB 'run:*' AND (?2 IS NULL OR s.owner = ?2
    OR s.id IN (SELECT session FROM shares WHERE principal = ?2 AND may IS NOT NULL))
GROUP BY s.id ORDER BY max(r.serial) DESC, s.id LIMIT ?1;

-- name: run
-- One run.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs WHERE id = ?;

-- name: runs
-- A session's runs, in order of admission.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs WHERE session = ? ORDER BY serial;

-- name: children
-- The children below a session's runs.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs WHERE home = ? ORDER BY serial;

-- name: latest_runs
-- The latest runs of all sessions, or of those that a principal owns or that are shared with it (children included).
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs
WHERE ?2 IS NULL OR session IN (SELECT id FROM sessions WHERE owner = ?2)
    OR coalesce(home, session) IN (SELECT session FROM shares WHERE principal = ?2 AND may IS NOT NULL)
ORDER BY serial DESC LIMIT ?1;

-- name: open_runs
-- Runs of all sessions that have no ending, or of those that a principal owns or that are shared with it.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs INDEXED BY runs_unsettled
WHERE ((ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0)) AND ending IS NULL
    AND (?1 IS NULL OR session IN (SELECT id FROM sessions WHERE owner = ?1)
        OR coalesce(home, session) IN (SELECT session FROM shares WHERE principal = ?1 AND may IS NOT NULL))
ORDER BY serial;

-- name: open_questions
-- Open questions of all runs.
SELECT id, run_id, session, principal, text, choices, state, answer, "by" FROM questions INDEXED BY questions_open
WHERE state = 'open' ORDER BY serial;

-- name: unsettled
-- The sessions at the top of trees with runs that have no ending, or whose ending the log does not tell.
SELECT coalesce(home, session) FROM runs INDEXED BY runs_unsettled
WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0)
GROUP BY coalesce(home, session) ORDER BY min(serial);

-- name: unsettled_runs
-- The unsettled runs of one session, and then those of the children below it.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs INDEXED BY runs_unsettled
WHERE coalesce(home, session) = ? AND ((ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0))
ORDER BY home IS NOT NULL, serial;

-- name: parts
-- The messages that were aliased to a run.
SELECT id, session, principal, kind, text, admitted_at, key, deadline, parent, home, agent, detached, alias,
    generation, started, outcome, cut, told, instructions, announce, drained FROM runs WHERE alias = ? AND ending IS NULL ORDER BY serial;

-- name: question
-- One question.
SELECT id, run_id, session, principal, text, choices, state, answer, "by" FROM questions WHERE id = ?;

-- name: questions
-- A run's questions.
SELECT id, run_id, session, principal, text, choices, state, answer, "by" FROM questions WHERE run_id = ?
ORDER BY serial;

-- name: wakes
-- Every schedule.
SELECT body FROM wakes ORDER BY id;

-- name: stops
-- Every stop's key.
SELECT principal, key, method, digest, at, receipt, aborted, already FROM stops ORDER BY serial;

-- name: tools
-- A run's tool calls.
SELECT call_id, run_id, name, arguments, state FROM tools WHERE run_id = ? ORDER BY serial;

-- name: receipt
-- A receipt, by its own id or a run's.
SELECT body FROM receipts WHERE id = coalesce((SELECT receipt FROM runs WHERE id = ?1), ?1);

-- name: pending_receipts
-- Receipts that were not drained yet.
SELECT body FROM receipts WHERE pending = 1 ORDER BY serial;

-- name: events
-- A stretch of a session's lasting events.
SELECT position, at, run_id, generation, data FROM events WHERE session = ? AND position > ? ORDER BY position LIMIT ?;

-- name: began
-- The position of a run's first event.
SELECT position FROM events WHERE session = ? AND run_id = ? ORDER BY position LIMIT 1;

-- name: passing
-- A stretch of a session's passing events.
SELECT run_id, events FROM passing WHERE session = ? AND position > ? ORDER BY position LIMIT ?;

-- name: dropped
-- The position up to which a session's log was dropped.
SELECT position FROM dropped WHERE session = ?;
