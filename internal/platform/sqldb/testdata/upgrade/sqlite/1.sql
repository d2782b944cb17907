-- A file as schema version 1 left it (.dump of the sqlite3 shell, and the header).
PRAGMA application_id = 1181508715;
PRAGMA journal_mode = WAL;
CREATE TABLE accounts (
    name     TEXT    NOT NULL PRIMARY KEY,
    role     TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "accounts" VALUES('ann@example.com','viewer',1793528430123456,0);
INSERT INTO "accounts" VALUES('old','admin',-62135596800000000,1);
INSERT INTO "accounts" VALUES('root','admin',1793528431123456,0);
CREATE TABLE schema_info (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    min_reader INTEGER NOT NULL
) STRICT;
INSERT INTO "schema_info" VALUES(1,1);
CREATE TABLE schema_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO "schema_version" VALUES(1,0,1,'2026-11-01 10:20:30');
INSERT INTO "schema_version" VALUES(2,1,1,'2026-11-01 10:20:30');
CREATE TABLE tokens (
    id      TEXT    NOT NULL PRIMARY KEY,
    account TEXT    NOT NULL REFERENCES accounts (name),
    hash    BLOB    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER, -- NULL is never
    revoked INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "tokens" VALUES('anns','ann@example.com',X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',1793528430123456,1793532030123456,0);
INSERT INTO "tokens" VALUES('ended','root',X'C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDFE0E1E2E3E4E5E6E7',1793528430123456,NULL,1);
INSERT INTO "tokens" VALUES('roots','root',X'6465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F80818283',1793528430123456,NULL,0);
CREATE INDEX tokens_by_account ON tokens (account);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('schema_version',2);
