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
INSERT INTO "events" VALUES('busy',4294967297,1794983141.56415,'r-1-e',7,'{"type":"message","text":"wait","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967298,1.79498314156975460054e+09,'r-1-e',7,'{"type":"started"}');
INSERT INTO "events" VALUES('busy',4294967299,1.79498314156986069674e+09,'r-1-f',NULL,'{"type":"message","text":"queued 0","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('busy',4294967301,1.79498314158189630502e+09,'r-1-11',NULL,'{"type":"message","text":"queued 1","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967297,1.79498314156300115581e+09,'r-1-d',7,'{"type":"message","text":"ask","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('question',4294967298,1.79498314156403088572e+09,'r-1-d',7,'{"type":"started"}');
INSERT INTO "events" VALUES('question',4294967300,1.79498314156427979468e+09,'r-1-d',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('question',4294967301,1.79498314156431174274e+09,'r-1-d',7,'{"type":"question","question_id":"q-1-10","text":"Deploy?","state":"open","choices":["staging","the moon"],"tool":null,"arguments":null,"answer":null,"by":null}');
INSERT INTO "events" VALUES('run:r-1-6',4294967318,1794983141.54353,'r-1-6',1,'{"type":"message","text":"help","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('run:r-1-6',4294967319,1.79498314154393076892e+09,'r-1-6',1,'{"type":"started"}');
INSERT INTO "events" VALUES('run:r-1-6',4294967320,1.79498314154471659662e+09,'r-1-6',1,'{"type":"block","text":"helped"}');
INSERT INTO "events" VALUES('run:r-1-6',4294967321,1.79498314154472088811e+09,'r-1-6',1,'{"type":"ended","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1794983141.5439265,"ended_at":1794983141.5440457},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('run:r-1-6',4294967323,1.79498314154478645328e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-7","session":"run:r-1-6","cause":"completed","by":null,"runs":[{"id":"r-1-6","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1794983141.5439265,"ended_at":1794983141.5440457,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5440457,"ended_at":1794983141.5447023,"drained_at":1794983141.5447438,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('stopped',4294967297,1794983141.55383,'r-1-9',3,'{"type":"message","text":"wait","by":"bob","of":null,"child":null}');
INSERT INTO "events" VALUES('stopped',4294967298,1.79498314155623984338e+09,'r-1-9',3,'{"type":"ended","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1794983141.5540097},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('stopped',4294967299,1.79498314155628657337e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-9","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1794983141.5540097,"drained":true},"body":"none","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5540097,"ended_at":1794983141.556227,"drained_at":1794983141.556253,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967297,1.79498314151661562919e+09,'r-1-1',1,'{"type":"message","text":"hello","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967298,1.79498314151780796049e+09,'r-1-1',1,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967300,1.79498314152593803402e+09,'r-1-1',1,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967301,1.79498314152595067018e+09,'r-1-1',1,'{"type":"block","text":"heard hello"}');
INSERT INTO "events" VALUES('talk',4294967302,1.79498314152595448496e+09,'r-1-1',1,'{"type":"ended","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794983141.5177994,"ended_at":1794983141.5180118},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967303,1.79498314152608180044e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-2","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794983141.5177994,"ended_at":1794983141.5180118,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5180118,"ended_at":1794983141.5259094,"drained_at":1794983141.5260012,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967304,1.79498314153143525119e+09,'r-1-3',3,'{"type":"message","text":"tool","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967305,1.79498314153203940386e+09,'r-1-3',3,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967307,1.79498314153225231168e+09,'r-1-3',3,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967308,1.79498314153226804735e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"pending","arguments":"{\"what\":\"short\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967309,1.79498314153282833094e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
INSERT INTO "events" VALUES('talk',4294967310,1.79498314153286862371e+09,'r-1-3',3,'{"type":"tool","call_id":"r-1-3.1","name":"look","state":"finished","arguments":null,"result":"\"short 停\"","error":null}');
INSERT INTO "events" VALUES('talk',4294967311,1.79498314153377461436e+09,'r-1-3',3,'{"type":"block","text":"heard tool"}');
INSERT INTO "events" VALUES('talk',4294967312,1.79498314153377962112e+09,'r-1-3',3,'{"type":"ended","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1794983141.532032,"ended_at":1794983141.5329268},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967313,1.79498314153385186194e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-4","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-3","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1794983141.532032,"ended_at":1794983141.5329268,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5329268,"ended_at":1794983141.5337594,"drained_at":1794983141.5338056,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-3"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('talk',4294967314,1.79498314153515267374e+09,'r-1-5',5,'{"type":"message","text":"child","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('talk',4294967315,1.79498314153778839108e+09,'r-1-5',5,'{"type":"started"}');
INSERT INTO "events" VALUES('talk',4294967317,1.79498314154351902008e+09,'r-1-5',5,'{"type":"child","child":"r-1-6","session":"run:r-1-6","agent":"helper","detached":false,"outcome":null}');
INSERT INTO "events" VALUES('talk',4294967322,1.79498314154472970961e+09,'r-1-5',5,'{"type":"child","child":"r-1-6","session":"run:r-1-6","agent":"helper","detached":false,"outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1794983141.5439265,"ended_at":1794983141.5440457}}');
INSERT INTO "events" VALUES('talk',4294967324,1.79498314154949045176e+09,'r-1-5',5,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('talk',4294967325,1.79498314154949641227e+09,'r-1-5',5,'{"type":"block","text":"heard child"}');
INSERT INTO "events" VALUES('talk',4294967326,1.79498314154949855803e+09,'r-1-5',5,'{"type":"ended","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1794983141.5377839,"ended_at":1794983141.5448627},"cut":"","tools":[],"void":[],"children":[]}');
INSERT INTO "events" VALUES('talk',4294967327,1.7949831415495672226e+09,NULL,NULL,'{"type":"receipt","receipt":{"id":"f-1-8","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-5","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1794983141.5377839,"ended_at":1794983141.5448627,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5448627,"ended_at":1794983141.5494735,"drained_at":1794983141.549528,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}}');
INSERT INTO "events" VALUES('tool',4294967297,1.79498314156159663197e+09,'r-1-c',7,'{"type":"message","text":"stuck","by":"alice","of":null,"child":null}');
INSERT INTO "events" VALUES('tool',4294967298,1.79498314156245946876e+09,'r-1-c',7,'{"type":"started"}');
INSERT INTO "events" VALUES('tool',4294967300,1.79498314156262397771e+09,'r-1-c',7,'{"type":"block","text":"hel"}');
INSERT INTO "events" VALUES('tool',4294967301,1.79498314156263780597e+09,'r-1-c',7,'{"type":"tool","call_id":"r-1-c.1","name":"look","state":"pending","arguments":"{\"what\":\"long\"}","result":null,"error":null}');
INSERT INTO "events" VALUES('tool',4294967302,1.79498314156368446352e+09,'r-1-c',7,'{"type":"tool","call_id":"r-1-c.1","name":"look","state":"running","arguments":null,"result":null,"error":null}');
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
INSERT INTO "marks" VALUES(1,'stopped','chat','bob','1002012345678901234567890.','12345678901234567890',1.79498314155392551423e+09);
CREATE TABLE "passing" (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
INSERT INTO "passing" VALUES(1,'tool',4294967299,'r-1-c','[[4294967299,1794983141.562575,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(2,'question',4294967299,'r-1-d','[[4294967299,1794983141.564185,7,{"type":"delta","text":"hel"}]]');
INSERT INTO "passing" VALUES(3,'busy',4294967300,'r-1-e','[[4294967300,1794983141.5698807,7,{"type":"delta","text":"hel"}]]');
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
INSERT INTO "receipts" VALUES(1,'f-1-2',0,0,'{"id":"f-1-2","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-1","outcome":{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794983141.5177994,"ended_at":1794983141.5180118,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5180118,"ended_at":1794983141.5259094,"drained_at":1794983141.5260012,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(2,'f-1-4',0,0,'{"id":"f-1-4","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-3","outcome":{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1794983141.532032,"ended_at":1794983141.5329268,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5329268,"ended_at":1794983141.5337594,"drained_at":1794983141.5338056,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[{"name":"look","state":"finished","run_id":"r-1-3"}],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(3,'f-1-7',0,0,'{"id":"f-1-7","session":"run:r-1-6","cause":"completed","by":null,"runs":[{"id":"r-1-6","outcome":{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1794983141.5439265,"ended_at":1794983141.5440457,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5440457,"ended_at":1794983141.5447023,"drained_at":1794983141.5447438,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(4,'f-1-8',0,0,'{"id":"f-1-8","session":"talk","cause":"completed","by":null,"runs":[{"id":"r-1-5","outcome":{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1794983141.5377839,"ended_at":1794983141.5448627,"drained":true},"body":"returned","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5448627,"ended_at":1794983141.5494735,"drained_at":1794983141.549528,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
INSERT INTO "receipts" VALUES(5,'f-1-a',0,0,'{"id":"f-1-a","session":"stopped","cause":"stopped","by":"bob","runs":[{"id":"r-1-9","outcome":{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1794983141.5540097,"drained":true},"body":"none","refused":{},"totals":{"processes":{"ended":0,"stuck":0,"detached":0}}}],"fenced_at":1794983141.5540097,"ended_at":1794983141.556227,"drained_at":1794983141.556253,"drain":"observed","durable":true,"grade":"inline","unseen":[],"refused":{},"tools":[],"processes":{"ended":0,"stuck":0,"detached":0},"host":"none","kept":[],"questions":0,"queued":0,"in_flight":0,"holds":0,"unconfirmed":[],"aborted":false,"already":null,"again":false}');
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
INSERT INTO "runs" VALUES(1,'r-1-1','talk','alice','chat','hello',1.79498314151529836648e+09,'key of hello',NULL,NULL,NULL,NULL,0,NULL,1,1,'completed','{"run_id":"r-1-1","ending":"completed","text":"hel\n\nheard hello","started_at":1794983141.5177994,"ended_at":1794983141.5180118}','',1,1,'f-1-2',NULL,NULL);
INSERT INTO "runs" VALUES(2,'r-1-3','talk','alice','chat','tool',1.79498314152624940877e+09,'key of tool',NULL,NULL,NULL,NULL,0,NULL,3,1,'completed','{"run_id":"r-1-3","ending":"completed","text":"hel\n\nheard tool","started_at":1794983141.532032,"ended_at":1794983141.5329268}','',1,1,'f-1-4',NULL,NULL);
INSERT INTO "runs" VALUES(3,'r-1-5','talk','alice','chat','child',1.79498314153397822375e+09,'key of child',NULL,NULL,NULL,NULL,0,NULL,5,1,'completed','{"run_id":"r-1-5","ending":"completed","text":"hel\n\nheard child","started_at":1794983141.5377839,"ended_at":1794983141.5448627}','',1,1,'f-1-8',NULL,NULL);
INSERT INTO "runs" VALUES(4,'r-1-6','run:r-1-6','alice','child','help',1.79498314153841972357e+09,NULL,NULL,'r-1-5','talk','helper',0,NULL,1,1,'completed','{"run_id":"r-1-6","ending":"completed","text":"helped","started_at":1794983141.5439265,"ended_at":1794983141.5440457}','',1,1,'f-1-7',NULL,NULL);
INSERT INTO "runs" VALUES(5,'r-1-9','stopped','bob','chat','wait',1.7949831415497128963e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,3,1,'stopped','{"run_id":"r-1-9","ending":"stopped","by":"bob","ended_at":1794983141.5540097}','',1,1,'f-1-a',NULL,NULL);
INSERT INTO "runs" VALUES(6,'r-1-c','tool','alice','chat','stuck',1.79498314156090211872e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(7,'r-1-d','question','alice','chat','ask',1.79498314156185531619e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(8,'r-1-e','busy','alice','chat','wait',1.79498314156307220458e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,7,1,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(9,'r-1-f','busy','alice','chat','queued 0',1.79498314156424427037e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(10,'r-1-11','busy','alice','chat','queued 1',1.79498314156992053985e+09,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'',0,0,NULL,NULL,NULL);
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
INSERT INTO "stops" VALUES(1,'bob','a stop','stop','6f366ddeb3c0f0abbf7265fc23291d25',1.79498314155903315541e+09,NULL,0,NULL);
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
INSERT INTO "wakes" VALUES('w-1-b','{"id":"w-1-b","session":"talk","principal":"alice","text":"look","since":1794983141.559516,"at":null,"every":86400.0,"cron":null}');
CREATE INDEX runs_of_session ON runs (session, generation);
CREATE INDEX runs_of_home ON runs (home) WHERE home IS NOT NULL;
CREATE INDEX runs_of_alias ON runs (alias) WHERE alias IS NOT NULL;
CREATE INDEX runs_unsettled ON runs (serial)
    WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0);
CREATE INDEX tools_of_run ON tools (run_id);
CREATE INDEX questions_of_run ON questions (run_id);
CREATE INDEX receipts_pending ON receipts (serial) WHERE pending = 1;
CREATE INDEX receipts_runless ON receipts (serial) WHERE runless = 1;
CREATE INDEX marks_of_principal ON marks ("by", serial);
CREATE INDEX shares_of_principal ON shares (principal);
CREATE INDEX sessions_plain ON sessions (id) WHERE plain = 1;
CREATE UNIQUE INDEX passing_of_session ON passing (session, position);
COMMIT;
PRAGMA user_version = 4;
