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
INSERT INTO "events" VALUES('busy',4294967357,1.7949463454384539128e+09,'r-1-36',7,'{"type":"message","text":"wait","by":"alice","of":null}');
INSERT INTO "events" VALUES('busy',4294967359,1.79494634543918251995e+09,'r-1-36',7,'{"type":"started"}');
INSERT INTO "events" VALUES('busy',4294967360,1.79494634543923139565e+09,'r-1-3e',NULL,'{"type":"message","text":"queued 0","by":"alice","of":null}');
INSERT INTO "events" VALUES('busy',4294967363,1.79494634543975758555e+09,'r-1-42',NULL,'{"type":"message","text":"queued 1","by":"alice","of":null}');
INSERT INTO "events" VALUES('question',4294967349,1.79494634543684816359e+09,'r-1-30',7,'{"type":"message","text":"ask","by":"alice","of":null}');
INSERT INTO "events" VALUES('question',4294967352,1.79494634543786883351e+09,'r-1-30',7,'{"type":"started"}');
INSERT INTO "events" VALUES('question',4294967354,1.79494634543799757957e+09,'r-1-30',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('question',4294967356,1.79494634543802905083e+09,'r-1-30',7,'{"type":"question","question_id":"q-1-3b","text":"Deploy?","state":"open","choices":["staging","the moon"],"tool":null,"arguments":null,"answer":null,"by":null}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967324,1.79494634542764401434e+09,'r-1-1a',1,'{"type":"message","text":"help","by":"alice","of":null}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967325,1.79494634542811655995e+09,'r-1-1a',1,'{"type":"started"}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967327,1.79494634542889142038e+09,'r-1-1a',1,'{"type":"block","text":"helped"}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967328,1.79494634542889571187e+09,'r-1-1a',1,'{"type":"ended","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794946345.4281132,"ended_at":1794946345.4281807},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('run:r-1-1a',4294967330,1.79494634542894577981e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-1e","session":"run:r-1-1a","cause":"completed","by":null,"runs":[{"id":"r-1-1a","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794946345.4281132,"ended_at":1794946345.4281807,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4281807,"ended_at":1794946345.4288783,"drained_at":1794946345.4289148,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('stopped',4294967337,1.7949463454311685562e+09,'r-1-28',3,'{"type":"message","text":"wait","by":"bob","of":null}');
INSERT INTO "events" VALUES('stopped',4294967339,1.79494634543254184726e+09,'r-1-28',3,'{"type":"ended","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794946345.431505},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('stopped',4294967340,1.79494634543257856364e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-2a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-28","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794946345.431505,"drained":true},"body":"none","refused":{}}],"fenced_at":1794946345.431505,"ended_at":1794946345.4325325,"drained_at":1794946345.432556,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967298,1.79494634541427254678e+09,'r-1-1',1,'{"type":"message","text":"hello","by":"alice","of":null}');
INSERT INTO "events" VALUES('talk',4294967299,1.79494634541603064531e+09,'r-1-1',1,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967302,1.79494634541844654083e+09,'r-1-1',1,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967303,1.79494634541845941543e+09,'r-1-1',1,'{"type":"block","text":"heard hello"}');
INSERT INTO "events" VALUES('talk',4294967304,1.79494634541846346861e+09,'r-1-1',1,'{"type":"ended","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794946345.416018,"ended_at":1794946345.4162068},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967305,1.79494634541869688029e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-5","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794946345.416018,"ended_at":1794946345.4162068,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4162068,"ended_at":1794946345.418416,"drained_at":1794946345.4184997,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967307,1.79494634542076277735e+09,'r-1-a',3,'{"type":"message","text":"tool","by":"alice","of":null}');
INSERT INTO "events" VALUES('talk',4294967308,1.79494634542204236984e+09,'r-1-a',3,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967310,1.79494634542221808432e+09,'r-1-a',3,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967311,1.79494634542223596576e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"pending","arguments":"{\"what\":\"short\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967312,1.7949463454229688644e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967313,1.79494634542302608495e+09,'r-1-a',3,'{"type":"tool","call_id":"r-1-a.1","name":"look","state":"finished","arguments":null,"result":"\"short 停\"","error":null}');
INSERT INTO "events" VALUES('talk',4294967315,1.79494634542513060567e+09,'r-1-a',3,'{"type":"block","text":"heard tool"}');
INSERT INTO "events" VALUES('talk',4294967316,1.79494634542513632779e+09,'r-1-a',3,'{"type":"ended","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794946345.4220328,"ended_at":1794946345.4231},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967317,1.79494634542520093917e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-12","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-a","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794946345.4220328,"ended_at":1794946345.4231,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4231,"ended_at":1794946345.42511,"drained_at":1794946345.4251628,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-a"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967319,1.79494634542645120625e+09,'r-1-16',5,'{"type":"message","text":"child","by":"alice","of":null}');
INSERT INTO "events" VALUES('talk',4294967320,1.79494634542686438559e+09,'r-1-16',5,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967323,1.79494634542763590806e+09,'r-1-16',5,'{"type":"child","child":"r-1-1a","session":"run:r-1-1a","agent":"helper","detached":false,"outcome":null}');
INSERT INTO "events" VALUES('talk',4294967329,1.79494634542890620226e+09,'r-1-16',5,'{"type":"child","child":"r-1-1a","session":"run:r-1-1a","agent":"helper","detached":false,"outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794946345.4281132,"ended_at":1794946345.4281807}}');
INSERT INTO "events" VALUES('talk',4294967332,1.79494634543005371091e+09,'r-1-16',5,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967333,1.79494634543005824093e+09,'r-1-16',5,'{"type":"block","text":"heard child"}');
INSERT INTO "events" VALUES('talk',4294967334,1.79494634543006014826e+09,'r-1-16',5,'{"type":"ended","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794946345.4268596,"ended_at":1794946345.429005},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967335,1.79494634543010902409e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-23","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-16","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794946345.4268596,"ended_at":1794946345.429005,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.429005,"ended_at":1794946345.430041,"drained_at":1794946345.4300787,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('tool',4294967343,1.79494634543549394607e+09,'r-1-2e',7,'{"type":"message","text":"stuck","by":"alice","of":null}');
INSERT INTO "events" VALUES('tool',4294967345,1.79494634543632197382e+09,'r-1-2e',7,'{"type":"started"}');
INSERT INTO "events" VALUES('tool',4294967347,1.79494634543643546108e+09,'r-1-2e',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('tool',4294967348,1.79494634543644857407e+09,'r-1-2e',7,'{"type":"tool","call_id":"r-1-2e.1","name":"look","state":"pending","arguments":"{\"what\":\"long\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('tool',4294967351,1.79494634543740797048e+09,'r-1-2e',7,'{"type":"tool","call_id":"r-1-2e.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
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
INSERT INTO "marks" VALUES(1,'stopped','chat','bob','1002012345678901234567890.','12345678901234567890',1.79494634543142104156e+09);
CREATE TABLE passing (
    position INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
INSERT INTO "passing" VALUES(4294967346,'tool','r-1-2e','[[4294967346,1794946345.43639,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(4294967353,'question','r-1-30','[[4294967353,1794946345.4379542,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(4294967361,'busy','r-1-36','[[4294967361,1794946345.439247,7,{"type":"delta","text":"hel"}]]');
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
INSERT INTO "questions" VALUES(1,'q-1-3b','r-1-30','question','alice','Deploy?','["staging","the moon"]','open',NULL,NULL);
CREATE TABLE receipts (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    pending INTEGER NOT NULL,
    runless INTEGER NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "receipts" VALUES(1,'f-1-5',0,0,'{"id":"f-1-5","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794946345.416018,"ended_at":1794946345.4162068,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4162068,"ended_at":1794946345.418416,"drained_at":1794946345.4184997,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(2,'f-1-12',0,0,'{"id":"f-1-12","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-a","outcome":{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794946345.4220328,"ended_at":1794946345.4231,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4231,"ended_at":1794946345.42511,"drained_at":1794946345.4251628,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-a"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(3,'f-1-1e',0,0,'{"id":"f-1-1e","session":"run:r-1-1a","cause":"completed","by":null,"runs":[{"id":"r-1-1a","outcome":{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794946345.4281132,"ended_at":1794946345.4281807,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.4281807,"ended_at":1794946345.4288783,"drained_at":1794946345.4289148,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(4,'f-1-23',0,0,'{"id":"f-1-23","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-16","outcome":{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794946345.4268596,"ended_at":1794946345.429005,"drained":true},"body":"returned","refused":{}}],"fenced_at":1794946345.429005,"ended_at":1794946345.430041,"drained_at":1794946345.4300787,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(5,'f-1-2a',0,0,'{"id":"f-1-2a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-28","outcome":{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794946345.431505,"drained":true},"body":"none","refused":{}}],"fenced_at":1794946345.431505,"ended_at":1794946345.4325325,"drained_at":1794946345.432556,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
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
INSERT INTO "runs" VALUES(1,'r-1-1','talk','alice','chat','hello',1.79494634540996170039e+09,'key of hello',NULL,NULL,NULL,NULL,0,NULL,1,1,'completed','{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794946345.416018,"ended_at":1794946345.4162068}','',1,1,'f-1-5');
INSERT INTO "runs" VALUES(2,'r-1-a','talk','alice','chat','tool',1.79494634541886830328e+09,'key of tool',NULL,NULL,NULL,NULL,0,NULL,3,1,'completed','{"run_id":"r-1-a","ending":"completed","text":"hel\n\nheard tool","started_at":1794946345.4220328,"ended_at":1794946345.4231}','',1,1,'f-1-12');
INSERT INTO "runs" VALUES(3,'r-1-16','talk','alice','chat','child',1.79494634542532515526e+09,'key of child',NULL,NULL,NULL,NULL,0,NULL,5,1,'completed','{"run_id":"r-1-16","ending":"completed","text":"hel\n\nheard child","started_at":1794946345.4268596,"ended_at":1794946345.429005}','',1,1,'f-1-23');
INSERT INTO "runs" VALUES(4,'r-1-1a','run:r-1-1a','alice','child','help',1.79494634542701578141e+09,NULL,NULL,'r-1-16','talk','helper',0,NULL,1,1,'completed','{"run_id":"r-1-1a","ending":"completed","text":"helped","started_at":1794946345.4281132,"ended_at":1794946345.4281807}','',1,1,'f-1-1e');
INSERT INTO "runs" VALUES(5,'r-1-28','stopped','bob','chat','wait',1.79494634543018102652e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,3,1,'stopped','{"run_id":"r-1-28","ending":"stopped","by":"bob","ended_at":1794946345.431505}','',1,1,'f-1-2a');
INSERT INTO "runs" VALUES(6,'r-1-2e','tool','alice','chat','stuck',1.7949463454346725941e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL);
INSERT INTO "runs" VALUES(7,'r-1-30','question','alice','chat','ask',1.79494634543554139132e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL);
INSERT INTO "runs" VALUES(8,'r-1-36','busy','alice','chat','wait',1.79494634543689107891e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL);
INSERT INTO "runs" VALUES(9,'r-1-3e','busy','alice','chat','queued 0',1.79494634543851566319e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL);
INSERT INTO "runs" VALUES(10,'r-1-42','busy','alice','chat','queued 1',1.79494634543927502638e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    generation INTEGER NOT NULL,
    strategy TEXT,
    since INTEGER NOT NULL,
    renewed INTEGER NOT NULL,
    crashes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('busy','alice',7,NULL,0,0,0);
INSERT INTO "sessions" VALUES('question','alice',7,NULL,0,0,0);
INSERT INTO "sessions" VALUES('run:r-1-1a','alice',2,NULL,0,0,0);
INSERT INTO "sessions" VALUES('stopped','bob',4,NULL,0,0,0);
INSERT INTO "sessions" VALUES('talk','alice',6,NULL,0,0,0);
INSERT INTO "sessions" VALUES('tool','alice',7,NULL,0,0,0);
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
INSERT INTO "stops" VALUES(1,'bob','a stop','stop','6f366ddeb3c0f0abbf7265fc23291d25',1.79494634543355917931e+09,NULL,0,NULL);
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
INSERT INTO "tools" VALUES(2,'r-1-2e.1','r-1-2e','look','{"what":"long"}','running');
CREATE TABLE wakes (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "wakes" VALUES('w-1-2d','{"id":"w-1-2d","session":"talk","principal":"alice","text":"look","since":1794946345.434039,"at":null,"every":86400.0,"cron":null}');
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
COMMIT;
PRAGMA user_version = 2;
