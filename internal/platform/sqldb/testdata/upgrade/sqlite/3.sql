-- A file as schema version 3 left it (.dump of the sqlite3 shell, and the header).
PRAGMA application_id = 1181508715;
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO schema_version VALUES(1,0,1,'2026-11-01 10:20:30');
INSERT INTO schema_version VALUES(2,1,1,'2026-11-01 10:20:30');
INSERT INTO schema_version VALUES(3,2,1,'2026-11-01 10:20:30');
INSERT INTO schema_version VALUES(4,3,1,'2026-11-01 10:20:30');
CREATE TABLE schema_info (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    min_reader INTEGER NOT NULL
) STRICT;
INSERT INTO schema_info VALUES(1,3);
CREATE TABLE accounts (
    name     TEXT    NOT NULL PRIMARY KEY,
    role     TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO accounts VALUES('ann@example.com','viewer',1793528430123456,0);
INSERT INTO accounts VALUES('old','admin',-62135596800000000,1);
INSERT INTO accounts VALUES('root','admin',1793528431123456,0);
CREATE TABLE tokens (
    id      TEXT    NOT NULL PRIMARY KEY,
    account TEXT    NOT NULL REFERENCES accounts (name),
    hash    BLOB    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER, -- NULL is never
    revoked INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO tokens VALUES('anns','ann@example.com',X'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f',1793528430123456,1793532030123456,0);
INSERT INTO tokens VALUES('ended','root',X'c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7',1793528430123456,NULL,1);
INSERT INTO tokens VALUES('roots','root',X'6465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283',1793528430123456,NULL,0);
CREATE TABLE desk (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    counter    INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    clock      INTEGER NOT NULL,
    wakes      INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    forgotten  INTEGER NOT NULL
) STRICT;
INSERT INTO desk VALUES(1,26,1,1793528449123456,4,14,20,0);
CREATE TABLE root_key (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    value    BLOB    NOT NULL
) STRICT;
INSERT INTO root_key VALUES(1,X'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f');
CREATE TABLE pools (
    name        TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    check_hook  INTEGER NOT NULL,
    reset_hook  INTEGER NOT NULL,
    ttl         INTEGER NOT NULL,
    max_ttl     INTEGER NOT NULL,
    cooldown    INTEGER NOT NULL,
    ban_initial INTEGER NOT NULL,
    ban_factor  REAL    NOT NULL,
    ban_max     INTEGER NOT NULL,
    scope       TEXT    NOT NULL,
    revision    INTEGER NOT NULL,
    author      TEXT    NOT NULL,
    published   INTEGER NOT NULL
, in_flight INTEGER NOT NULL DEFAULT 0, new_share INTEGER NOT NULL DEFAULT 0, sites INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
INSERT INTO pools VALUES('crawl.eu','managed',0,0,600000000,86400000000,60000000,600000000,2.0,86400000000,'exitIP',0,'',0,2,10,0);
INSERT INTO pools VALUES('win-vms','fixed',1,1,1200000000,7200000000,30000000,600000000,2.0,86400000000,'key',2,'ann@example.com',1793528439123456,0,0,0);
CREATE TABLE keys (
    name            TEXT    NOT NULL PRIMARY KEY,
    version         INTEGER NOT NULL,
    pools           TEXT    NOT NULL,
    leaving         TEXT    NOT NULL,
    managed         INTEGER NOT NULL,
    uid             TEXT    NOT NULL,
    attributes      TEXT    NOT NULL, -- JSON, '' for none
    exit_ip         TEXT    NOT NULL,
    unfit           TEXT    NOT NULL,
    disabled        INTEGER NOT NULL,
    disabled_reason TEXT    NOT NULL,
    disabled_by     TEXT    NOT NULL,
    disabled_at     INTEGER NOT NULL,
    disabled_auto   INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    lease_pool      TEXT    NOT NULL,
    target          TEXT    NOT NULL,
    account         TEXT    NOT NULL,
    holder          TEXT    NOT NULL,
    secret          BLOB    NOT NULL, -- its SHA-256
    ticket          TEXT    NOT NULL,
    ttl             INTEGER NOT NULL,
    taken           INTEGER NOT NULL,
    expires         INTEGER NOT NULL,
    check_hook      INTEGER NOT NULL,
    reset_hook      INTEGER NOT NULL,
    resetting       INTEGER NOT NULL,
    unclaimed       INTEGER NOT NULL,
    ended           TEXT    NOT NULL, -- how; '' while it runs
    ended_at        INTEGER NOT NULL,
    ended_by        TEXT    NOT NULL,
    past            TEXT    NOT NULL, -- fence=end of earlier leases, with commas between
    needs_reset     INTEGER NOT NULL,
    reset_failures  INTEGER NOT NULL,
    errors          INTEGER NOT NULL,
    cool_until      INTEGER NOT NULL,
    used_at         INTEGER NOT NULL,
    free_at         INTEGER NOT NULL, -- when time lets a take consider it
    rank            INTEGER NOT NULL  -- the least comes first
, weight INTEGER NOT NULL DEFAULT 0, joined INTEGER NOT NULL DEFAULT 0, seat INTEGER NOT NULL DEFAULT 0, since INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO keys VALUES('win-01',3,'win-vms','',0,'','','','',0,'','',0,0,2,'win-vms','','ann@example.com','job one',X'7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed','one',1200000000,1793528434123456,1793529634123456,1,1,0,0,'released',1793528435123456,'ann@example.com','',0,0,0,1793528465123456,1793528435123456,1793528465123456,1793528435123456,0,0,0,0);
INSERT INTO keys VALUES('win-02',3,'win-vms','',0,'','','','',1,'it hangs','ann@example.com',1793528437123456,1,5,'win-vms','','ann@example.com','job two',X'3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3','two',1200000000,1793528436123456,1793529636123456,1,1,0,0,'released',1793528437123456,'ann@example.com','',1,1,0,1793528467123456,1793528437123456,1099511627776000000,1793528437123456,0,0,0,0);
INSERT INTO keys VALUES('win-03',3,'','win-vms',0,'','','','',0,'','',0,0,8,'win-vms','','ann@example.com','job three',X'8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f','three',1200000000,1793528438123456,1793529638123456,1,1,0,0,'',0,'','',0,0,0,0,1793528438123456,1099511627776000000,1793528438123456,0,0,0,0);
INSERT INTO keys VALUES('win-04',1,'win-vms','',0,'','','','',0,'','',0,0,0,'','','','',X'0000000000000000000000000000000000000000000000000000000000000000','',0,0,0,0,0,0,0,'',0,'','',0,0,0,0,0,0,-62135596800000000,0,0,0,0);
INSERT INTO keys VALUES('crawl.a',4,'crawl.eu','',1,'uid-a','{"city":"Łódź","provider":"kvm"}','192.0.2.1','',0,'','',0,0,17,'crawl.eu','news.example.com','ann@example.com','job five',X'222b0bd51fcef7e65c2e62db2ed65457013bab56be6fafeb19ee11d453153c80','five',600000000,1793528444123456,1793529044123456,0,0,0,0,'',0,'','14=released',0,0,0,0,1793528444123456,1793529044123456,1793528444123456,50,1793528441123456,24,0);
INSERT INTO keys VALUES('crawl.b',1,'crawl.eu','',1,'uid-b','','192.0.2.2','two checks failed',0,'','',0,0,0,'','','','',X'0000000000000000000000000000000000000000000000000000000000000000','',0,0,0,0,0,0,0,'',0,'','',0,0,0,0,0,1099511627776000000,-62135596800000000,0,0,25,0);
CREATE TABLE members (
    pool    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    leaving INTEGER NOT NULL, -- the list dropped it while it was held
    exit_ip TEXT    NOT NULL, seat INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (pool, key)
) STRICT, WITHOUT ROWID;
INSERT INTO members VALUES('crawl.eu','crawl.a',0,'192.0.2.1',24);
INSERT INTO members VALUES('crawl.eu','crawl.b',0,'192.0.2.2',25);
INSERT INTO members VALUES('win-vms','win-01',0,'',0);
INSERT INTO members VALUES('win-vms','win-02',0,'',0);
INSERT INTO members VALUES('win-vms','win-03',1,'',0);
INSERT INTO members VALUES('win-vms','win-04',0,'',0);
CREATE TABLE ready (
    pool          TEXT    NOT NULL,
    free_at       INTEGER NOT NULL,
    rank          INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    held_until    INTEGER NOT NULL, -- 0 when nobody holds it
    auto_disabled INTEGER NOT NULL,
    exit_ip       TEXT    NOT NULL,
    PRIMARY KEY (pool, free_at, rank, key)
) STRICT, WITHOUT ROWID;
INSERT INTO ready VALUES('crawl.eu',1793529044123456,1793528444123456,'crawl.a',1793529044123456,0,'192.0.2.1');
INSERT INTO ready VALUES('crawl.eu',1099511627776000000,-62135596800000000,'crawl.b',0,0,'192.0.2.2');
INSERT INTO ready VALUES('win-vms',0,-62135596800000000,'win-04',0,0,'');
INSERT INTO ready VALUES('win-vms',1793528465123456,1793528435123456,'win-01',0,0,'');
INSERT INTO ready VALUES('win-vms',1099511627776000000,1793528437123456,'win-02',0,1,'');
CREATE TABLE running (
    expires INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    PRIMARY KEY (expires, key)
) STRICT, WITHOUT ROWID;
INSERT INTO running VALUES(1793529044123456,'crawl.a');
INSERT INTO running VALUES(1793529638123456,'win-03');
CREATE TABLE tickets (
    id            TEXT    NOT NULL PRIMARY KEY,
    digest        TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    pool          TEXT    NOT NULL,
    target        TEXT    NOT NULL,
    account       TEXT    NOT NULL,
    holder        TEXT    NOT NULL,
    wanted        TEXT    NOT NULL, -- JSON, '' for none
    runs_hooks    INTEGER NOT NULL,
    since         INTEGER NOT NULL,
    live_until    INTEGER NOT NULL,
    place_until   INTEGER NOT NULL,
    granted_key   TEXT    NOT NULL,
    granted_fence INTEGER NOT NULL,
    kept          INTEGER NOT NULL
, matching TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO tickets VALUES('one','digest of one',0,'win-vms','','ann@example.com','job one','',1,1793528434123456,0,0,'win-01',2,1793529034123456,'');
INSERT INTO tickets VALUES('two','digest of two',0,'win-vms','','ann@example.com','job two','',1,1793528436123456,0,0,'win-02',5,1793529036123456,'');
INSERT INTO tickets VALUES('three','digest of three',0,'win-vms','','ann@example.com','job three','',1,1793528438123456,0,0,'win-03',8,1793529038123456,'');
INSERT INTO tickets VALUES('four','digest of four',0,'crawl.eu','shop.example.com','ann@example.com','job four','',1,1793528442123456,0,0,'crawl.a',14,1793529042123456,'');
INSERT INTO tickets VALUES('five','digest of five',0,'crawl.eu','news.example.com','ann@example.com','job five','',1,1793528444123456,0,0,'crawl.a',17,1793529044123456,'');
INSERT INTO tickets VALUES('six','digest of six',19,'crawl.eu','shop.example.com','ann@example.com','job six','{"city":"Łódź"}',0,1793528445123456,1793528450123456,1793528460123456,'',0,0,'[{"Attribute":"city","Op":"exists","Values":null}]');
CREATE TABLE cooldowns (
    scope        TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    target       TEXT    NOT NULL,
    until        INTEGER NOT NULL,
    strikes      INTEGER NOT NULL,
    banned_until INTEGER NOT NULL,
    forget       INTEGER NOT NULL, turn INTEGER NOT NULL DEFAULT 0, uses TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (scope, id, target)
) STRICT, WITHOUT ROWID;
INSERT INTO cooldowns VALUES('exitIP','192.0.2.1','shop.example.com',1793529043123456,1,1793529043123456,1793615443123456,1793528442123456,'17=1793529044123456=0');
CREATE TABLE changes (
    pool    TEXT    NOT NULL PRIMARY KEY,
    id      TEXT    NOT NULL,
    verb    TEXT    NOT NULL,
    keys    TEXT    NOT NULL,
    account TEXT    NOT NULL,
    holder  TEXT    NOT NULL,
    began   INTEGER NOT NULL,
    until   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO changes VALUES('win-vms','change-1','add','win-04,win-05','ann@example.com','terminal',1793528446123456,1793528506123456);
CREATE TABLE events (
    last_seq INTEGER NOT NULL PRIMARY KEY,
    total    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    list     TEXT    NOT NULL -- JSON
) STRICT;
INSERT INTO events VALUES(1,1,1793528433123456,'[{"seq":1,"kind":"published","pool":"win-vms","account":"ann@example.com"}]');
INSERT INTO events VALUES(3,2,1793528434123456,'[{"seq":3,"kind":"taken","pool":"win-vms","key":"win-01","lease":"win-01~2","account":"ann@example.com"}]');
INSERT INTO events VALUES(4,3,1793528435123456,'[{"seq":4,"kind":"released","pool":"win-vms","key":"win-01","lease":"win-01~2","account":"ann@example.com"}]');
INSERT INTO events VALUES(6,4,1793528436123456,'[{"seq":6,"kind":"taken","pool":"win-vms","key":"win-02","lease":"win-02~5","account":"ann@example.com"}]');
INSERT INTO events VALUES(7,5,1793528437123456,'[{"seq":7,"kind":"disabled","pool":"win-vms","key":"win-02","lease":"win-02~5","account":"ann@example.com"}]');
INSERT INTO events VALUES(9,6,1793528438123456,'[{"seq":9,"kind":"taken","pool":"win-vms","key":"win-03","lease":"win-03~8","account":"ann@example.com"}]');
INSERT INTO events VALUES(10,7,1793528439123456,'[{"seq":10,"kind":"published","pool":"win-vms","account":"ann@example.com"}]');
INSERT INTO events VALUES(13,10,1793528441123456,'[{"seq":11,"kind":"pool","pool":"crawl.eu"},{"seq":12,"kind":"changed","pool":"crawl.eu","key":"crawl.a"},{"seq":13,"kind":"changed","pool":"crawl.eu","key":"crawl.b"}]');
INSERT INTO events VALUES(15,11,1793528442123456,'[{"seq":15,"kind":"taken","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~14","account":"ann@example.com"}]');
INSERT INTO events VALUES(16,12,1793528443123456,'[{"seq":16,"kind":"banned","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~14","account":"ann@example.com"}]');
INSERT INTO events VALUES(18,13,1793528444123456,'[{"seq":18,"kind":"taken","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~17","account":"ann@example.com"}]');
INSERT INTO events VALUES(20,14,1793528446123456,'[{"seq":20,"kind":"change began","pool":"win-vms","account":"ann@example.com"}]');
CREATE TABLE resource_action (
    seq     INTEGER NOT NULL PRIMARY KEY,
    action  TEXT    NOT NULL,
    phase   TEXT    NOT NULL,
    pool    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    verb    TEXT    NOT NULL,
    "user"  TEXT    NOT NULL,
    host    TEXT    NOT NULL,
    command TEXT    NOT NULL,
    ok      INTEGER, -- NULL is no verdict
    detail  TEXT    NOT NULL,
    time    INTEGER NOT NULL
) STRICT;
INSERT INTO resource_action VALUES(21,'action-number-one','started','win-vms','win-05','create','ann@example.com','desk-7','make-vm "$QASIGHT_KEY"',NULL,'',1793528447123456);
INSERT INTO resource_action VALUES(22,'action-number-one','finished','win-vms','win-05','create','ann@example.com','desk-7','make-vm "$QASIGHT_KEY"',1,replace('done\n','\n',char(10)),1793528448123456);
INSERT INTO resource_action VALUES(23,'action-number-two','started','win-vms','win-01','destroy','ann@example.com','desk-7','make-vm "$QASIGHT_KEY"',NULL,'',1793528449123456);
CREATE TABLE open_actions (
    action TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    pool   TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    "user" TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO open_actions VALUES('action-number-two',23,'win-vms','win-01','ann@example.com');
CREATE TABLE lines (
    pool   TEXT    NOT NULL,
    target TEXT    NOT NULL,
    asked  TEXT    NOT NULL,
    no     INTEGER NOT NULL, -- of its places; never used twice
    began  INTEGER NOT NULL,
    used   INTEGER NOT NULL,
    first  INTEGER NOT NULL, -- later seats are of keys that joined since
    mark   INTEGER NOT NULL, -- keys of later seats have no place yet
    PRIMARY KEY (pool, target, asked)
) STRICT, WITHOUT ROWID;
INSERT INTO lines VALUES('crawl.eu','shop.example.com','',26,1793528442123456,1793528442123456,26,24);
CREATE TABLE places (
    line   INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    turn   INTEGER NOT NULL,
    own    INTEGER NOT NULL, -- its turn without that of its address
    seat   INTEGER NOT NULL,
    key    TEXT    NOT NULL,
    PRIMARY KEY (line, parked, turn, own, seat)
) STRICT, WITHOUT ROWID;
INSERT INTO places VALUES(7,0,1793528442123456,1793528442123456,24,'crawl.a');
INSERT INTO places VALUES(26,1793529043123456,1793528442123456,1793528442123456,24,'crawl.a');
CREATE TABLE old_lines (
    no INTEGER NOT NULL PRIMARY KEY
) STRICT;
INSERT INTO old_lines VALUES(7);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('schema_version',4);
CREATE INDEX tokens_by_account ON tokens (account);
CREATE INDEX members_by_exit_ip ON members (pool, exit_ip, leaving) WHERE exit_ip <> '';
CREATE INDEX tickets_waiting ON tickets (pool, seq) WHERE granted_fence = 0;
CREATE INDEX tickets_places ON tickets (place_until) WHERE granted_fence = 0 AND place_until > 0;
CREATE INDEX tickets_kept ON tickets (kept) WHERE granted_fence > 0;
CREATE INDEX cooldowns_by_target ON cooldowns (target, until) WHERE until > 0;
CREATE INDEX cooldowns_by_forget ON cooldowns (forget);
CREATE INDEX changes_by_until ON changes (until);
CREATE UNIQUE INDEX resource_action_by_action ON resource_action (action, phase);
CREATE INDEX resource_action_by_pool ON resource_action (pool, seq);
CREATE INDEX resource_action_by_key ON resource_action (key, seq);
CREATE INDEX open_actions_by_seq ON open_actions (seq);
CREATE INDEX members_by_seat ON members (pool, seat) WHERE seat > 0;
CREATE INDEX keys_by_exit_ip ON keys (exit_ip) WHERE exit_ip <> '';
CREATE INDEX cooldowns_by_ban ON cooldowns (banned_until, scope, id) WHERE banned_until > 0;
CREATE INDEX lines_by_use ON lines (used, no);
