-- The first schema. A number is never used twice and a file never changed: what comes later is a file of its own.

-- Facts about the whole: the last boot, and the last one that was closed and not killed.
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO facts VALUES ('boot', 0), ('closed', 0);

-- Conversations. `crashes`: how many times in a row the server died while a run of it was going.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    generation INTEGER NOT NULL,
    strategy TEXT,
    since INTEGER NOT NULL,
    renewed INTEGER NOT NULL,
    crashes INTEGER NOT NULL
) WITHOUT ROWID;

-- Messages and the runs they are. `ending` is written once; `told`: the terminal event is in the log.
CREATE TABLE runs (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    admitted_at REAL NOT NULL,
    key TEXT,
    deadline REAL,
    parent TEXT,
    home TEXT,
    agent TEXT,
    detached INTEGER NOT NULL,
    alias TEXT,
    generation INTEGER,
    started INTEGER NOT NULL,
    ending TEXT,
    outcome TEXT,
    cut TEXT NOT NULL,
    told INTEGER NOT NULL,
    drained INTEGER NOT NULL DEFAULT 0,
    receipt TEXT
);
CREATE INDEX runs_of_session ON runs (session, generation);
CREATE INDEX runs_of_home ON runs (home) WHERE home IS NOT NULL;
CREATE INDEX runs_of_alias ON runs (alias) WHERE alias IS NOT NULL;
CREATE INDEX runs_unsettled ON runs (serial)
    WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0);

-- The first use of each key, oldest first.
CREATE TABLE keys (
    serial INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    method TEXT NOT NULL,
    digest TEXT NOT NULL,
    run_id TEXT NOT NULL,
    generation INTEGER,
    superseded TEXT,
    UNIQUE (principal, key)
);

-- Keys that were stopped before they were seen.
CREATE TABLE tombstones (
    serial INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    UNIQUE (principal, key)
);

-- Tool calls; the start is here before the body runs.
CREATE TABLE tools (
    serial INTEGER PRIMARY KEY,
    call_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    state TEXT NOT NULL
);
CREATE INDEX tools_of_run ON tools (run_id);

-- Questions to people.
CREATE TABLE questions (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    text TEXT NOT NULL,
    choices TEXT,
    state TEXT NOT NULL,
    answer TEXT,
    "by" TEXT
);
CREATE INDEX questions_of_run ON questions (run_id);

-- Schedules.
CREATE TABLE wakes (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;

-- Where in their own channels stops stood. `at` is exact, `place` its text to compare by.
CREATE TABLE marks (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    channel TEXT NOT NULL,
    "by" TEXT NOT NULL,
    place TEXT NOT NULL,
    at TEXT NOT NULL,
    UNIQUE (session, channel, "by")
);
CREATE INDEX marks_of_principal ON marks ("by", serial);

-- Receipts; `pending` until drained, `runless` where nothing but detached processes fell.
CREATE TABLE receipts (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    pending INTEGER NOT NULL,
    runless INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX receipts_pending ON receipts (serial) WHERE pending = 1;
CREATE INDEX receipts_runless ON receipts (serial) WHERE runless = 1;

-- The log: what lasts.
CREATE TABLE events (
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    at REAL NOT NULL,
    run_id TEXT,
    generation INTEGER,
    data TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;

-- The log: what counts only while its run does (deltas, typing, progress). A row is what one run said in a moment;
-- by the position of the last, so that what many say at once goes to few pages.
CREATE TABLE passing (
    position INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
CREATE INDEX passing_of_run ON passing (session, run_id);

-- Up to which position a session's log was dropped.
CREATE TABLE dropped (
    session TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) WITHOUT ROWID;
