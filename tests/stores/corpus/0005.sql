BEGIN TRANSACTION;
CREATE TABLE dropped (
    session TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE epochs (
    session TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "epochs" VALUES('busy',1);
INSERT INTO "epochs" VALUES('question',1);
INSERT INTO "epochs" VALUES('stopped',1);
INSERT INTO "epochs" VALUES('talk',1);
INSERT INTO "epochs" VALUES('tool',1);
CREATE TABLE events (
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    at REAL NOT NULL,
    run_id TEXT,
    generation INTEGER,
    data TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
INSERT INTO "events" VALUES('busy',4294967297,1.79501310459286952015e+09,'r-1-e',7,'{"type":"message","text":"wait","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967298,1.79501310459431314466e+09,'r-1-e',7,'{"type":"started"}');
INSERT INTO "events" VALUES('busy',4294967300,1.79501310459539937971e+09,'r-1-f',NULL,'{"type":"message","text":"queued 0","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967301,1.79501310459636235234e+09,'r-1-11',NULL,'{"type":"message","text":"queued 1","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967297,1.79501310458887100218e+09,'r-1-d',7,'{"type":"message","text":"ask","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967298,1.79501310459265184401e+09,'r-1-d',7,'{"type":"started"}');
INSERT INTO "events" VALUES('question',4294967300,1.79501310459341430658e+09,'r-1-d',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('question',4294967301,1.79501310459346151348e+09,'r-1-d',7,'{"type":"question","question_id":"q-1-10","text":"Deploy?","state":"open","choices":["staging","the moon"],"tool":null,"arguments":null,"answer":null,"by":null}');
INSERT INTO "events" VALUES('run:r-1-6',4294967318,1.79501310455677247045e+09,'r-1-6',1,'{"type":"message","text":"help","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('run:r-1-6',4294967319,1.79501310455748867983e+09,'r-1-6',1,'{"type":"started"}');
INSERT INTO "events" VALUES('run:r-1-6',4294967320,1.7950131045607354641e+09,'r-1-6',1,'{"type":"block","text":"helped"}');
INSERT INTO "events" VALUES('run:r-1-6',4294967321,1.79501310456074333193e+09,'r-1-6',1,'{"type":"ended","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1795013104.5574834,"ended_at":1795013104.5576422},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('run:r-1-6',4294967323,1.7950131045608632564e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-7","session":"run:r-1-6","cause":"completed","by":null,"runs":[{"id":"r-1-6","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1795013104.5574834,"ended_at":1795013104.5576422,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5576422,"ended_at":1795013104.5606668,"drained_at":1795013104.560781,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('stopped',4294967297,1.79501310457299065584e+09,'r-1-9',3,'{"type":"message","text":"wait","by":"bob","of":null,"child":null}');
INSERT INTO "events" VALUES('stopped',4294967298,1.79501310458080840111e+09,'r-1-9',3,'{"type":"ended","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1795013104.5737839},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('stopped',4294967299,1.79501310458089208604e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-9","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1795013104.5737839,"drained":true},"body":"none","refused":{},"totals":{}}],"fenced_at":1795013104.5737839,"ended_at":1795013104.5807786,"drained_at":1795013104.580832,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967297,1.79501310449077582358e+09,'r-1-1',1,'{"type":"message","text":"hello","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967298,1.79501310449450850485e+09,'r-1-1',1,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967300,1795013104.52252,'r-1-1',1,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967301,1.7950131045225436688e+09,'r-1-1',1,'{"type":"block","text":"heard hello"}');
INSERT INTO "events" VALUES('talk',4294967302,1.79501310452254915234e+09,'r-1-1',1,'{"type":"ended","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1795013104.4944916,"ended_at":1795013104.494928},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967303,1.79501310452266383166e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-2","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1795013104.4944916,"ended_at":1795013104.494928,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.494928,"ended_at":1795013104.5224676,"drained_at":1795013104.522596,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967304,1.79501310453865742678e+09,'r-1-3',3,'{"type":"message","text":"tool","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967305,1.7950131045405480862e+09,'r-1-3',3,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967307,1.79501310454083609583e+09,'r-1-3',3,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967308,1.79501310454085731506e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"pending","arguments":"{\"what\":\"short\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967309,1.79501310454248857494e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967310,1.79501310454254436495e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"finished","arguments":null,"result":"\"short 停\"","error":null}');
INSERT INTO "events" VALUES('talk',4294967311,1.79501310454654812811e+09,'r-1-3',3,'{"type":"block","text":"heard tool"}');
INSERT INTO "events" VALUES('talk',4294967312,1.79501310454655504228e+09,'r-1-3',3,'{"type":"ended","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1795013104.5405378,"ended_at":1795013104.5426302},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967313,1.7950131045466532707e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-4","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-3","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1795013104.5405378,"ended_at":1795013104.5426302,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5426302,"ended_at":1795013104.5465202,"drained_at":1795013104.546592,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-3"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967314,1.79501310455136156088e+09,'r-1-5',5,'{"type":"message","text":"child","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967315,1.79501310455330467222e+09,'r-1-5',5,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967317,1.79501310455675244324e+09,'r-1-5',5,'{"type":"child","child":"r-1-6","session":"run:r-1-6","agent":"helper","detached":false,"outcome":null}');
INSERT INTO "events" VALUES('talk',4294967322,1.79501310456075811386e+09,'r-1-5',5,'{"type":"child","child":"r-1-6","session":"run:r-1-6","agent":"helper","detached":false,"outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1795013104.5574834,"ended_at":1795013104.5576422}}');
INSERT INTO "events" VALUES('talk',4294967324,1.79501310456225919728e+09,'r-1-5',5,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967325,1.79501310456226539609e+09,'r-1-5',5,'{"type":"block","text":"heard child"}');
INSERT INTO "events" VALUES('talk',4294967326,1.79501310456226897244e+09,'r-1-5',5,'{"type":"ended","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1795013104.553299,"ended_at":1795013104.5609581},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967327,1.79501310456235265737e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-8","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-5","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1795013104.553299,"ended_at":1795013104.5609581,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5609581,"ended_at":1795013104.5622354,"drained_at":1795013104.5623043,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('tool',4294967297,1.79501310458615541453e+09,'r-1-c',7,'{"type":"message","text":"stuck","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('tool',4294967298,1.79501310458733773231e+09,'r-1-c',7,'{"type":"started"}');
INSERT INTO "events" VALUES('tool',4294967300,1.79501310458753609656e+09,'r-1-c',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('tool',4294967301,1.795013104587553978e+09,'r-1-c',7,'{"type":"tool","call_id":"r-1-c.1","name":"look","state":"pending","arguments":"{\"what\":\"long\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('tool',4294967302,1.79501310458985066415e+09,'r-1-c',7,'{"type":"tool","call_id":"r-1-c.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "facts" VALUES('boot',1);
INSERT INTO "facts" VALUES('closed',0);
INSERT INTO "facts" VALUES('epoch',0);
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
INSERT INTO "keys" VALUES(1,'alice','key of hello','send','573986a134f7450185c77494d3ee5b53','r-1-1',1,NULL);
INSERT INTO "keys" VALUES(2,'alice','key of tool','send','750b53391f30d35cfeeab0e1328de4b7','r-1-3',3,NULL);
INSERT INTO "keys" VALUES(3,'alice','key of child','send','5bccd813d167556ce12fabb1f7e4dfc8','r-1-5',5,NULL);
CREATE TABLE "marks" (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    channel TEXT NOT NULL,
    "by" TEXT NOT NULL,
    place TEXT NOT NULL,
    at TEXT NOT NULL,
    stopped_at REAL NOT NULL,
    UNIQUE (session, channel, "by", place)
);
INSERT INTO "marks" VALUES(1,'stopped','chat','bob','1002012345678901234567890.','12345678901234567890',1.79501310457358455655e+09);
CREATE TABLE "passing" (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
INSERT INTO "passing" VALUES(1,'tool',4294967299,'r-1-c','[[4294967299,1795013104.5874753,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(2,'question',4294967299,'r-1-d','[[4294967299,1795013104.5931888,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(3,'busy',4294967299,'r-1-e','[[4294967299,1795013104.5944097,7,{"type":"delta","text":"hel"}]]');
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
INSERT INTO "questions" VALUES(1,'q-1-10','r-1-d','question','alice','Deploy?','["staging","the moon"]','open',NULL,NULL);
CREATE TABLE receipts (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    pending INTEGER NOT NULL,
    runless INTEGER NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "receipts" VALUES(1,'f-1-2',0,0,'{"id":"f-1-2","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1795013104.4944916,"ended_at":1795013104.494928,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.494928,"ended_at":1795013104.5224676,"drained_at":1795013104.522596,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(2,'f-1-4',0,0,'{"id":"f-1-4","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-3","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1795013104.5405378,"ended_at":1795013104.5426302,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5426302,"ended_at":1795013104.5465202,"drained_at":1795013104.546592,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-3"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(3,'f-1-7',0,0,'{"id":"f-1-7","session":"run:r-1-6","cause":"completed","by":null,"runs":[{"id":"r-1-6","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1795013104.5574834,"ended_at":1795013104.5576422,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5576422,"ended_at":1795013104.5606668,"drained_at":1795013104.560781,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(4,'f-1-8',0,0,'{"id":"f-1-8","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-5","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1795013104.553299,"ended_at":1795013104.5609581,"drained":true},"body":"returned","refused":{},"totals":{}}],"fenced_at":1795013104.5609581,"ended_at":1795013104.5622354,"drained_at":1795013104.5623043,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(5,'f-1-a',0,0,'{"id":"f-1-a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-9","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1795013104.5737839,"drained":true},"body":"none","refused":{},"totals":{}}],"fenced_at":1795013104.5737839,"ended_at":1795013104.5807786,"drained_at":1795013104.580832,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
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
, instructions TEXT, announce TEXT);
INSERT INTO "runs" VALUES(1,'r-1-1','talk','alice','chat','hello',1.79501310447408032422e+09,'key of hello',NULL,NULL,NULL,NULL,0,NULL,1,1,'completed','{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1795013104.4944916,"ended_at":1795013104.494928}','',1,1,'f-1-2',NULL,NULL);
INSERT INTO "runs" VALUES(2,'r-1-3','talk','alice','chat','tool',1.79501310452292776103e+09,'key of tool',NULL,NULL,NULL,NULL,0,NULL,3,1,'completed','{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1795013104.5405378,"ended_at":1795013104.5426302}','',1,1,'f-1-4',NULL,NULL);
INSERT INTO "runs" VALUES(3,'r-1-5','talk','alice','chat','child',1.79501310454686570164e+09,'key of child',NULL,NULL,NULL,NULL,0,NULL,5,1,'completed','{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1795013104.553299,"ended_at":1795013104.5609581}','',1,1,'f-1-8',NULL,NULL);
INSERT INTO "runs" VALUES(4,'r-1-6','run:r-1-6','alice','child','help',1.79501310455358910559e+09,NULL,NULL,'r-1-5','talk','helper',0,NULL,1,1,'completed','{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1795013104.5574834,"ended_at":1795013104.5576422}','',1,1,'f-1-7',NULL,NULL);
INSERT INTO "runs" VALUES(5,'r-1-9','stopped','bob','chat','wait',1.79501310456253910068e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,3,1,'stopped','{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1795013104.5737839}','',1,1,'f-1-a',NULL,NULL);
INSERT INTO "runs" VALUES(6,'r-1-c','tool','alice','chat','stuck',1.79501310458522129057e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(7,'r-1-d','question','alice','chat','ask',1.79501310458650660518e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(8,'r-1-e','busy','alice','chat','wait',1.79501310458895182607e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(9,'r-1-f','busy','alice','chat','queued 0',1.79501310459336376195e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(10,'r-1-11','busy','alice','chat','queued 1',1.79501310459544706349e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    generation INTEGER NOT NULL,
    strategy TEXT,
    since INTEGER NOT NULL,
    renewed INTEGER NOT NULL,
    crashes INTEGER NOT NULL
, plain INTEGER NOT NULL DEFAULT 0, announced INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('busy','alice',7,NULL,0,0,0,0,0);
INSERT INTO "sessions" VALUES('question','alice',7,NULL,0,0,0,0,0);
INSERT INTO "sessions" VALUES('run:r-1-6','alice',2,NULL,0,0,0,0,0);
INSERT INTO "sessions" VALUES('stopped','bob',4,NULL,0,0,0,0,0);
INSERT INTO "sessions" VALUES('talk','alice',6,NULL,0,0,0,0,0);
INSERT INTO "sessions" VALUES('tool','alice',7,NULL,0,0,0,0,0);
CREATE TABLE shares (
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    may TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (session, principal)
) WITHOUT ROWID;
INSERT INTO "shares" VALUES('talk','bob','read',4294967328);
CREATE TABLE stops (
    serial INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    method TEXT NOT NULL,
    digest TEXT NOT NULL,
    at REAL NOT NULL,
    receipt TEXT,
    aborted INTEGER NOT NULL,
    already TEXT,
    UNIQUE (principal, key)
);
INSERT INTO "stops" VALUES(1,'bob','a stop','stop','6f366ddeb3c0f0abbf7265fc23291d25',1.7950131045824024677e+09,NULL,0,NULL);
CREATE TABLE tombstones (
    serial INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    UNIQUE (principal, key)
);
INSERT INTO "tombstones" VALUES(1,'bob','never came');
CREATE TABLE tools (
    serial INTEGER PRIMARY KEY,
    call_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    state TEXT NOT NULL
);
INSERT INTO "tools" VALUES(1,'r-1-3.1','r-1-3','look','{"what":"short"}','finished');
INSERT INTO "tools" VALUES(2,'r-1-c.1','r-1-c','look','{"what":"long"}','running');
CREATE TABLE wakes (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "wakes" VALUES('w-1-b','{"id":"w-1-b","session":"talk","principal":"alice","text":"look","since":1795013104.5831022,"at":null,"every":86400.0,"cron":null}');
CREATE INDEX runs_of_session ON runs (session, generation);
CREATE INDEX runs_of_home ON runs (home) WHERE home IS NOT NULL;
CREATE INDEX runs_of_alias ON runs (alias) WHERE alias IS NOT NULL;
CREATE INDEX tools_of_run ON tools (run_id);
CREATE INDEX questions_of_run ON questions (run_id);
CREATE INDEX receipts_pending ON receipts (serial) WHERE pending = 1;
CREATE INDEX receipts_runless ON receipts (serial) WHERE runless = 1;
CREATE INDEX marks_of_principal ON marks ("by", serial);
CREATE INDEX shares_of_principal ON shares (principal);
CREATE INDEX sessions_plain ON sessions (id) WHERE plain = 1;
CREATE UNIQUE INDEX passing_of_session ON passing (session, position);
CREATE INDEX runs_unsettled ON runs (coalesce(home, session), serial)
    WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0);
CREATE INDEX epochs_by_number ON epochs (epoch);
CREATE INDEX questions_open ON questions (serial) WHERE state = 'open';
COMMIT;
PRAGMA user_version = 5;
