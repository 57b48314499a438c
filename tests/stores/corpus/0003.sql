BEGIN TRANSACTION;
CREATE TABLE dropped (
    session TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    at REAL NOT NULL,
    run_id TEXT,
    generation INTEGER,
    data TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
INSERT INTO "events" VALUES('busy',4294967354,1.79495818598322296136e+09,'r-1-37',7,'{"type":"message","text":"wait","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967360,1.79495818598446178434e+09,'r-1-37',7,'{"type":"started"}');
INSERT INTO "events" VALUES('busy',4294967362,1.79495818598713970182e+09,'r-1-3c',NULL,'{"type":"message","text":"queued 0","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967364,1.79495818599520087248e+09,'r-1-43',NULL,'{"type":"message","text":"queued 1","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967350,1.79495818597527194027e+09,'r-1-31',7,'{"type":"message","text":"ask","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967353,1.79495818598309350017e+09,'r-1-31',7,'{"type":"started"}');
INSERT INTO "events" VALUES('question',4294967357,1.79495818598362922666e+09,'r-1-31',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('question',4294967359,1.79495818598368287082e+09,'r-1-31',7,'{"type":"question","question_id":"q-1-3e","text":"Deploy?","state":"open","choices":["staging","the moon"],"tool":null,"arguments":null,"answer":null,"by":null}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967324,1794958185.95232,'r-1-1a',1,'{"type":"message","text":"help","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967325,1.79495818595285844807e+09,'r-1-1a',1,'{"type":"started"}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967327,1.79495818595398855211e+09,'r-1-1a',1,'{"type":"block","text":"helped"}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967328,1.79495818595399379727e+09,'r-1-1a',1,'{"type":"ended","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794958185.952851,"ended_at":1794958185.9531624},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967330,1.79495818595405364033e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-1e","session":"run:r-1-1a","cause":"completed","by":null,"runs":[{"id":"r-1-1a","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794958185.952851,"ended_at":1794958185.9531624,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9531624,"ended_at":1794958185.9539697,"drained_at":1794958185.9540186,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('stopped',4294967337,1.79495818596007442472e+09,'r-1-28',3,'{"type":"message","text":"wait","by":"bob","of":null,"child":null}');
INSERT INTO "events" VALUES('stopped',4294967339,1.79495818596312308314e+09,'r-1-28',3,'{"type":"ended","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794958185.960459},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('stopped',4294967340,1.79495818596317410469e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-2a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-28","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794958185.960459,"drained":true},"body":"none","refused":{}}],"fenced_at":1794958185.960459,"ended_at":1794958185.963105,"drained_at":1794958185.963145,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967298,1.79495818594093394272e+09,'r-1-1',1,'{"type":"message","text":"hello","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967299,1.79495818594158148768e+09,'r-1-1',1,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967302,1.79495818594268417359e+09,'r-1-1',1,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967303,1.79495818594269633287e+09,'r-1-1',1,'{"type":"block","text":"heard hello"}');
INSERT INTO "events" VALUES('talk',4294967304,1.79495818594269967083e+09,'r-1-1',1,'{"type":"ended","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794958185.9415739,"ended_at":1794958185.9417572},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967305,1.7949581859427669048e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-5","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794958185.9415739,"ended_at":1794958185.9417572,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9417572,"ended_at":1794958185.9426625,"drained_at":1794958185.9427292,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967307,1.79495818594410395628e+09,'r-1-a',3,'{"type":"message","text":"tool","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967308,1.79495818594458031655e+09,'r-1-a',3,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967310,1.79495818594475769992e+09,'r-1-a',3,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967311,1.79495818594477295876e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"pending","arguments":"{\"what\":\"short\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967312,1.79495818594526410105e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967313,1.79495818594530272488e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"finished","arguments":null,"result":"\"short 停\"","error":null}');
INSERT INTO "events" VALUES('talk',4294967315,1.79495818594620299337e+09,'r-1-a',3,'{"type":"block","text":"heard tool"}');
INSERT INTO "events" VALUES('talk',4294967316,1.79495818594621229166e+09,'r-1-a',3,'{"type":"ended","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794958185.9445758,"ended_at":1794958185.945348},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967317,1.79495818594626688961e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-12","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-a","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794958185.9445758,"ended_at":1794958185.945348,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.945348,"ended_at":1794958185.9461877,"drained_at":1794958185.946237,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-a"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967319,1.79495818594749140736e+09,'r-1-16',5,'{"type":"message","text":"child","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967320,1.7949581859511852264e+09,'r-1-16',5,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967323,1.79495818595230889318e+09,'r-1-16',5,'{"type":"child","child":"r-1-1a","session":"run:r-1-1a","agent":"helper","detached":false,"outcome":null}');
INSERT INTO "events" VALUES('talk',4294967329,1.7949581859540042877e+09,'r-1-16',5,'{"type":"child","child":"r-1-1a","session":"run:r-1-1a","agent":"helper","detached":false,"outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794958185.952851,"ended_at":1794958185.9531624}}');
INSERT INTO "events" VALUES('talk',4294967332,1794958185.95515,'r-1-16',5,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967333,1.79495818595515489583e+09,'r-1-16',5,'{"type":"block","text":"heard child"}');
INSERT INTO "events" VALUES('talk',4294967334,1.79495818595515727999e+09,'r-1-16',5,'{"type":"ended","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794958185.9511766,"ended_at":1794958185.9541254},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967335,1.79495818595521402357e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-23","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-16","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794958185.9511766,"ended_at":1794958185.9541254,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9541254,"ended_at":1794958185.955132,"drained_at":1794958185.9551847,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('tool',4294967344,1.79495818597118926051e+09,'r-1-2f',7,'{"type":"message","text":"stuck","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('tool',4294967346,1.79495818597217059132e+09,'r-1-2f',7,'{"type":"started"}');
INSERT INTO "events" VALUES('tool',4294967348,1.79495818597233772282e+09,'r-1-2f',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('tool',4294967349,1.79495818597235107421e+09,'r-1-2f',7,'{"type":"tool","call_id":"r-1-2f.1","name":"look","state":"pending","arguments":"{\"what\":\"long\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('tool',4294967352,1.79495818597947549822e+09,'r-1-2f',7,'{"type":"tool","call_id":"r-1-2f.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "facts" VALUES('boot',1);
INSERT INTO "facts" VALUES('closed',0);
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
INSERT INTO "keys" VALUES(2,'alice','key of tool','send','750b53391f30d35cfeeab0e1328de4b7','r-1-a',3,NULL);
INSERT INTO "keys" VALUES(3,'alice','key of child','send','5bccd813d167556ce12fabb1f7e4dfc8','r-1-16',5,NULL);
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
INSERT INTO "marks" VALUES(1,'stopped','chat','bob','1002012345678901234567890.','12345678901234567890',1.7949581859603381157e+09);
CREATE TABLE passing (
    position INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
INSERT INTO "passing" VALUES(4294967347,'tool','r-1-2f','[[4294967347,1794958185.972284,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(4294967355,'question','r-1-31','[[4294967355,1794958185.9834542,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(4294967361,'busy','r-1-37','[[4294967361,1794958185.9845798,7,{"type":"delta","text":"hel"}]]');
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
INSERT INTO "questions" VALUES(1,'q-1-3e','r-1-31','question','alice','Deploy?','["staging","the moon"]','open',NULL,NULL);
CREATE TABLE receipts (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    pending INTEGER NOT NULL,
    runless INTEGER NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "receipts" VALUES(1,'f-1-5',0,0,'{"id":"f-1-5","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794958185.9415739,"ended_at":1794958185.9417572,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9417572,"ended_at":1794958185.9426625,"drained_at":1794958185.9427292,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(2,'f-1-12',0,0,'{"id":"f-1-12","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-a","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794958185.9445758,"ended_at":1794958185.945348,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.945348,"ended_at":1794958185.9461877,"drained_at":1794958185.946237,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-a"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(3,'f-1-1e',0,0,'{"id":"f-1-1e","session":"run:r-1-1a","cause":"completed","by":null,"runs":[{"id":"r-1-1a","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794958185.952851,"ended_at":1794958185.9531624,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9531624,"ended_at":1794958185.9539697,"drained_at":1794958185.9540186,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(4,'f-1-23',0,0,'{"id":"f-1-23","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-16","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794958185.9511766,"ended_at":1794958185.9541254,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794958185.9541254,"ended_at":1794958185.955132,"drained_at":1794958185.9551847,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(5,'f-1-2a',0,0,'{"id":"f-1-2a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-28","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794958185.960459,"drained":true},"body":"none","refused":{}}],"fenced_at":1794958185.960459,"ended_at":1794958185.963105,"drained_at":1794958185.963145,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
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
INSERT INTO "runs" VALUES(1,'r-1-1','talk','alice','chat','hello',1.79495818593938350673e+09,'key of hello',NULL,NULL,NULL,NULL,0,NULL,1,1,'completed','{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794958185.9415739,"ended_at":1794958185.9417572}','',1,1,'f-1-5',NULL,NULL);
INSERT INTO "runs" VALUES(2,'r-1-a','talk','alice','chat','tool',1.79495818594289350514e+09,'key of tool',NULL,NULL,NULL,NULL,0,NULL,3,1,'completed','{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794958185.9445758,"ended_at":1794958185.945348}','',1,1,'f-1-12',NULL,NULL);
INSERT INTO "runs" VALUES(3,'r-1-16','talk','alice','chat','child',1.79495818594637060166e+09,'key of child',NULL,NULL,NULL,NULL,0,NULL,5,1,'completed','{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794958185.9511766,"ended_at":1794958185.9541254}','',1,1,'f-1-23',NULL,NULL);
INSERT INTO "runs" VALUES(4,'r-1-1a','run:r-1-1a','alice','child','help',1.794958185951374054e+09,NULL,NULL,'r-1-16','talk','helper',0,NULL,1,1,'completed','{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794958185.952851,"ended_at":1794958185.9531624}','',1,1,'f-1-1e',NULL,NULL);
INSERT INTO "runs" VALUES(5,'r-1-28','stopped','bob','chat','wait',1.79495818595532226564e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,3,1,'stopped','{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794958185.960459}','',1,1,'f-1-2a',NULL,NULL);
INSERT INTO "runs" VALUES(6,'r-1-2f','tool','alice','chat','stuck',1.79495818596948337551e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(7,'r-1-31','question','alice','chat','ask',1.79495818597125744815e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(8,'r-1-37','busy','alice','chat','wait',1.7949581859753415585e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(9,'r-1-3c','busy','alice','chat','queued 0',1.79495818598357820511e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(10,'r-1-43','busy','alice','chat','queued 1',1.79495818598721098898e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
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
INSERT INTO "sessions" VALUES('run:r-1-1a','alice',2,NULL,0,0,0,0,0);
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
INSERT INTO "shares" VALUES('talk','bob','read',4294967342);
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
INSERT INTO "stops" VALUES(1,'bob','a stop','stop','6f366ddeb3c0f0abbf7265fc23291d25',1.79495818596734166144e+09,NULL,0,NULL);
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
INSERT INTO "tools" VALUES(1,'r-1-a.1','r-1-a','look','{"what":"short"}','finished');
INSERT INTO "tools" VALUES(2,'r-1-2f.1','r-1-2f','look','{"what":"long"}','running');
CREATE TABLE wakes (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "wakes" VALUES('w-1-2d','{"id":"w-1-2d","session":"talk","principal":"alice","text":"look","since":1794958185.9680154,"at":null,"every":86400.0,"cron":null}');
CREATE INDEX runs_of_session ON runs (session, generation);
CREATE INDEX runs_of_home ON runs (home) WHERE home IS NOT NULL;
CREATE INDEX runs_of_alias ON runs (alias) WHERE alias IS NOT NULL;
CREATE INDEX runs_unsettled ON runs (serial)
    WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0);
CREATE INDEX tools_of_run ON tools (run_id);
CREATE INDEX questions_of_run ON questions (run_id);
CREATE INDEX receipts_pending ON receipts (serial) WHERE pending = 1;
CREATE INDEX receipts_runless ON receipts (serial) WHERE runless = 1;
CREATE INDEX passing_of_run ON passing (session, run_id);
CREATE INDEX marks_of_principal ON marks ("by", serial);
CREATE INDEX shares_of_principal ON shares (principal);
CREATE INDEX sessions_plain ON sessions (id) WHERE plain = 1;
COMMIT;
PRAGMA user_version = 3;
